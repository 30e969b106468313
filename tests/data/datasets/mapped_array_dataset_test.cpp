#include <fstream>

#include "contract/dataset_contract.h"
#include "data/test_datasets.h"
#include "test_util.h"
#include "trainkit/data/tensor_dataset.h"

namespace trainkit {
namespace {

using namespace test;
using Catch::Contains;

std::string npy(const std::string& header, const std::string& data, char major = 1) {
  std::string text = header;
  const size_t before = major == 1 ? 10 : 12;
  while ((before + text.size() + 1) % 64) text += ' ';
  text += '\n';
  std::string bytes = "\x93NUMPY";
  bytes += major;
  bytes += '\0';
  for (size_t i = 0; i < (major == 1 ? 2 : 4); ++i) bytes += static_cast<char>(text.size() >> (8 * i));
  return bytes + text + data;
}

std::string write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string floats(int64_t count) {
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(i) / 2;
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return bytes;
}

const std::string kHeader = "{'descr': '<f4', 'fortran_order': False, 'shape': (7, 2, 3), }";

TEST_CASE("MappedArrayDataset reads the rows of a NumPy file", "[data][mapped_array]") {
  const TempDir dir;
  const char major = GENERATE(1, 2, 3);
  const auto dataset = MappedArrayDataset::open_npy(write(dir / "a.npy", npy(kHeader, floats(42), major)), "x").value();
  CHECK(dataset->size() == 7);
  CHECK(dataset->fields() == std::vector<FieldSpec>{{"x", at::kFloat, {2, 3}}});
  auto loader = Prefetcher::create(dataset, SequentialSampler(7), {.batch_size = 7, .num_workers = 1}).value();
  const auto batch = loader->next().value();
  CHECK((*batch)["x"].equal(torch::arange(42, torch::kFloat).reshape({7, 2, 3}) / 2));
  check_dataset_contract(dataset);
}

TEST_CASE("MappedArrayDataset reads raw rows", "[data][mapped_array]") {
  const TempDir dir;
  const std::string path = write(dir / "a.bin", floats(42));
  check_dataset_contract(MappedArrayDataset::open_raw(path, {"x", at::kFloat, {6}}).value());
  CHECK(MappedArrayDataset::open_raw(path, {"x", at::kFloat, {}}).value()->size() == 42);
  CHECK(MappedArrayDataset::open_raw(write(dir / "empty", ""), {"x", at::kFloat, {}}).value()->size() == 0);
  const auto status = MappedArrayDataset::open_raw(path, {"x", at::kFloat, {5}}).status();
  CHECK(exit_code(status) == ExitCode::kData);
  CHECK_THAT(std::string(status.message()),
             Contains("data.array") && Contains("not a multiple of the row size") && Contains("multiple of 20 bytes"));
  CHECK_FALSE(MappedArrayDataset::open_raw(path, {"x", at::kFloat, {0}}).ok());
  CHECK(MappedArrayDataset::open_raw(dir / "none", {"x", at::kFloat, {}}).status().code() ==
        absl::StatusCode::kNotFound);
}

TEST_CASE("MappedArrayDataset reports the problem of an invalid NumPy file", "[data][mapped_array]") {
  const TempDir dir;
  const std::string data = floats(42);
  const auto with = [](std::string header, const std::string& from, const std::string& to) {
    return header.replace(header.find(from), from.size(), to);
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "does not begin with"},
      {"\x93NUMPX" + npy(kHeader, data).substr(6), "does not begin with"},
      {npy(kHeader, data).substr(0, 11), "ends within the header"},
      {npy(kHeader, data).substr(0, 40), "ends within the header"},
      {npy(kHeader, data, 4), "version 4"},
      {npy(kHeader, data).substr(0, npy(kHeader, data).size() - 1), "shorter than its array"},
      {npy(with(kHeader, "False", "True"), data), "Fortran order"},
      {npy(with(kHeader, "False", "Maybe"), data), "neither True nor False"},
      {npy(with(kHeader, "<f4", ">f4"), data), "type \">f4\" are not supported"},
      {npy(with(kHeader, "<f4", "|O"), data), "type \"|O\" are not supported"},
      {npy(with(kHeader, "'<f4'", "[('a', '<f4')]"), data), "not records"},
      {npy(with(kHeader, "(7, 2, 3)", "()"), data), "a scalar"},
      {npy(with(kHeader, "(7, 2, 3)", "(7, -2)"), data), "not a tuple of sizes"},
      {npy(with(kHeader, "(7, 2, 3)", "(7 2)"), data), "not a tuple of sizes"},
      {npy(with(kHeader, "(7, 2, 3)", "(4611686018427387904, 4611686018427387904)"), data), "fits 64 bits"},
      {npy(with(kHeader, "(7, 2, 3)", "(99999999999999999999,)"), data), "not a tuple of sizes"},
      {npy(with(kHeader, "'shape'", "'form'"), data), "entry \"form\""},
      {npy("{'descr': '<f4', 'shape': (7, 2, 3)}", data), "lacks"},
      {npy("[1, 2]", data), "not a dictionary"},
      {npy("{'descr': '<f4'", data), "not a dictionary"},
      {npy("{descr", data), "not a dictionary"},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto status =
        MappedArrayDataset::open_npy(write(dir / ("bad" + std::to_string(i)), cases[i].first), "x").status();
    INFO("case " << i << ": " << status.message());
    CHECK(exit_code(status) == ExitCode::kData);
    CHECK_THAT(std::string(status.message()), Contains("data.npy") && Contains(cases[i].second));
  }
}

TEST_CASE("MappedArrayDataset reports rows missing from a truncated file", "[data][mapped_array]") {
  const TempDir dir;
  const std::string path = write(dir / "a.bin", std::string(1 << 20, 'x'));
  const auto dataset = MappedArrayDataset::open_raw(path, {"x", at::kByte, {1024}}).value();
  auto loader = Prefetcher::create(dataset, SequentialSampler(1024), {.batch_size = 8, .num_workers = 1}).value();
  CHECK(loader->next().ok());
  std::filesystem::resize_file(path, 5000);
  loader->seek(0, 100);
  const auto batch = loader->next();
  REQUIRE_FALSE(batch.ok());
  CHECK(exit_code(batch.status()) == ExitCode::kData);
  CHECK_THAT(std::string(batch.status().message()), Contains("data.damaged") && Contains("row 800"));
}

}  // namespace
}  // namespace trainkit
