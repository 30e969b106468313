#include "contract/dataset_contract.h"

#include <fstream>

#include "test_util.h"
#include "trainkit/data/adapters.h"
#include "trainkit/data/tensor_dataset.h"

namespace trainkit {
namespace {

using test::check_dataset_contract;

std::shared_ptr<const Dataset> tensors(int64_t rows) {
  torch::manual_seed(3);
  return std::make_shared<TensorDataset>(
      TensorDataset({{"image", torch::rand({rows, 3, 5})},
                     {"wide", torch::randint(255, {rows, 5000}, torch::kByte)},
                     {"label", torch::arange(rows)},
                     {"flag", torch::arange(rows).remainder(2).to(torch::kBool)},
                     {"pair", torch::arange(rows * 2, torch::kInt).reshape({rows, 2})},
                     {"half", torch::rand({rows}).to(torch::kHalf)},
                     {"four", torch::rand({rows, 2}, torch::kDouble)}}));
}

// Implements only the required functions of a dataset.
class Squares final : public Dataset {
 public:
  int64_t size() const override { return 97; }
  const std::vector<FieldSpec>& fields() const override {
    static const std::vector<FieldSpec> fields = {{"square", at::kLong, {}}, {"noise", at::kDouble, {4}}};
    return fields;
  }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override {
    *out.row<int64_t>(0, at) = key.index * key.index;
    RandomStream random = key.random();
    for (int i = 0; i < 4; ++i) out.row<double>(1, at)[i] = random.normal();
  }
  std::string describe(int64_t index) const override { return "number " + std::to_string(index); }
};

TEST_CASE("A dataset that only implements get satisfies the contract", "[contract][dataset]") {
  check_dataset_contract(std::make_shared<Squares>());
}

TEST_CASE("TensorDataset satisfies the contract", "[contract][dataset]") {
  for (const int64_t rows : {0, 1, 2, 100, 1000}) check_dataset_contract(tensors(rows));
}

TEST_CASE("MapDataset satisfies the contract", "[contract][dataset]") {
  const auto in_place = std::make_shared<MapDataset>(tensors(100), [](const RowKey& key, const BatchView& row) {
    row.row<float>(0, 0)[2] += static_cast<float>(key.random().uniform());
  });
  check_dataset_contract(in_place);
  const auto other_fields = std::make_shared<MapDataset>(
      std::make_shared<Squares>(), std::vector<FieldSpec>{{"sum", at::kDouble, {}}, {"bytes", at::kByte, {3}}},
      [](const RowKey& key, const BatchView& in, const BatchView& out) {
        *out.row<double>(0, 0) =
            in.row<double>(1, 0)[0] + in.row<double>(1, 0)[3] + static_cast<double>(*in.row<int64_t>(0, 0));
        for (int i = 0; i < 3; ++i) out.row<uint8_t>(1, 0)[i] = static_cast<uint8_t>(key.random()() >> (8 * i));
      });
  check_dataset_contract(other_fields);
  check_dataset_contract(std::make_shared<MapDataset>(
      other_fields, [](const RowKey&, const BatchView& row) { *row.row<double>(0, 0) *= 2; }));
}

TEST_CASE("Subset satisfies the contract", "[contract][dataset]") {
  check_dataset_contract(std::make_shared<Subset>(tensors(50), std::vector<int64_t>{4, 49, 0, 4, 17}));
  check_dataset_contract(std::make_shared<Subset>(std::make_shared<Squares>(), std::vector<int64_t>{}));
}

TEST_CASE("ConcatDataset satisfies the contract", "[contract][dataset]") {
  std::vector<std::shared_ptr<const Dataset>> parts = {tensors(10), tensors(0), tensors(1), tensors(37)};
  check_dataset_contract(std::make_shared<ConcatDataset>(parts));
}

TEST_CASE("DiskCachedDataset satisfies the contract", "[contract][dataset]") {
  const test::TempDir folder;
  const auto cached = DiskCachedDataset::open(tensors(100), folder / "rows", "tensors");
  REQUIRE(cached.status() == absl::OkStatus());
  check_dataset_contract(*cached);
  check_dataset_contract(*cached);  // from the file
}

TEST_CASE("CachedDataset satisfies the contract", "[contract][dataset]") {
  check_dataset_contract(std::make_shared<CachedDataset>(tensors(100)));
  check_dataset_contract(std::make_shared<CachedDataset>(tensors(100), CachedDatasetOptions{.max_bytes = 30 * 5200}));
  check_dataset_contract(std::make_shared<CachedDataset>(tensors(100), CachedDatasetOptions{.max_bytes = 0}));
}

TEST_CASE("Adapters of adapters satisfy the contract", "[contract][dataset]") {
  std::vector<std::shared_ptr<const Dataset>> parts = {
      std::make_shared<Subset>(tensors(30), std::vector<int64_t>{1, 2, 3, 5, 8, 13, 21}),
      std::make_shared<CachedDataset>(tensors(20))};
  const auto all = std::make_shared<ConcatDataset>(parts);
  check_dataset_contract(std::make_shared<MapDataset>(all, [](const RowKey& key, const BatchView& row) {
    *row.row<int64_t>(2, 0) += static_cast<int64_t>(key.random().below(5));
  }));
}

}  // namespace
}  // namespace trainkit
