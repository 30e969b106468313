#include "trainkit/data/batch.h"

#include "test_util.h"

namespace trainkit {
namespace {

using Catch::Contains;

std::shared_ptr<const std::vector<FieldSpec>> fields() {
  return std::make_shared<const std::vector<FieldSpec>>(
      std::vector<FieldSpec>{{"x", at::kFloat, {2}}, {"y", at::kLong, {}}});
}

Batch batch(int64_t padding = 0) {
  return Batch(fields(), {torch::arange(10, torch::kFloat).reshape({5, 2}), torch::arange(5)}, {7, 8, 9, 3, 4},
               padding);
}

TEST_CASE("Batch finds tensors by field name", "[data][batch]") {
  const Batch b = batch();
  CHECK(b.size() == 5);
  CHECK(b["y"][3].item<int64_t>() == 3);
  CHECK(b.contains("x"));
  CHECK_FALSE(b.contains("z"));
  CHECK_THROWS_AS(b["z"], c10::IndexError);
  CHECK_THROWS_WITH(b["z"], Contains("no field \"z\"; there are: x, y"));
}

TEST_CASE("Batch::slice returns views of the same memory", "[data][batch]") {
  const Batch b = batch(2);
  const Batch part = b.slice(1, 4);
  CHECK(part.size() == 3);
  CHECK(part["x"].data_ptr<float>() == b["x"].data_ptr<float>() + 2);
  CHECK(std::vector<int64_t>(part.row_indices().begin(), part.row_indices().end()) == std::vector<int64_t>{8, 9, 3});
  CHECK(part.padding_rows() == 1);
  CHECK(b.slice(0, 2).padding_rows() == 0);
  CHECK(b.slice(4, 5).padding_rows() == 1);
  CHECK(b.slice(5, 5).size() == 0);
  CHECK_THROWS_AS(b.slice(3, 6), c10::IndexError);
  CHECK_THROWS_AS(b.slice(-1, 2), c10::IndexError);
  CHECK_THROWS_AS(b.slice(3, 2), c10::IndexError);
}

TEST_CASE("Batch refuses tensors that do not match its fields", "[data][batch]") {
  const at::Tensor x = torch::zeros({5, 2}), y = torch::zeros({5}, torch::kLong);
  CHECK_THROWS_WITH(Batch(fields(), {x}), Contains("one tensor for each of the 2 fields, got 1"));
  CHECK_THROWS_WITH(Batch(fields(), {x, y.slice(0, 0, 4)}), Contains("field y must have 5 rows, got 4"));
  CHECK_THROWS_WITH(Batch(fields(), {x, y.to(torch::kInt)}), Contains("field y must be Long, got Int"));
  CHECK_THROWS_WITH(Batch(fields(), {torch::zeros({5, 3}), y}),
                    Contains("a row of field x must have shape [2], got [3]"));
  CHECK_THROWS_WITH(Batch(fields(), {x, at::Tensor()}), Contains("field y has no tensor"));
  CHECK_THROWS_WITH(Batch(fields(), {x, y}, {1, 2}), Contains("must have 2 rows, got 5"));
  CHECK_THROWS_WITH(Batch(fields(), {x, y}, {}, 6), Contains("padding_rows must be in 0..5, got 6"));
  CHECK_THROWS_AS(Batch(nullptr, {}), c10::ValueError);
}

TEST_CASE("Batch::to shares tensors that are already on the device", "[data][batch]") {
  const Batch b = batch(1);
  const Batch same = b.to(at::kCPU);
  CHECK(same["x"].data_ptr() == b["x"].data_ptr());
  CHECK(same.padding_rows() == 1);
  CHECK(same.row_indices().size() == 5);
  CHECK(Batch().size() == 0);
  CHECK(Batch().fields().empty());
}

}  // namespace
}  // namespace trainkit
