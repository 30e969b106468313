/// Compared with files that NumPy writes.

#include <cstdlib>

#include "data/test_datasets.h"
#include "test_util.h"
#include "trainkit/data/tensor_dataset.h"

namespace trainkit {
namespace {

TEST_CASE("MappedArrayDataset reads every dtype that NumPy writes", "[data][mapped_array]") {
  if (test::python().empty()) TRAINKIT_SKIP("TRAINKIT_PYTHON is not set");
  const test::TempDir dir;
  const std::string script = TRAINKIT_REFERENCE_DIR "/npy_files.py";
  REQUIRE(std::system((test::python() + " " + script + " " + dir.path().string()).c_str()) == 0);
  const std::vector<std::pair<std::string, at::ScalarType>> types = {{"bool", at::kBool},
                                                                     {"uint8", at::kByte},
                                                                     {"int8", at::kChar},
                                                                     {"uint16", at::kUInt16},
                                                                     {"int16", at::kShort},
                                                                     {"uint32", at::kUInt32},
                                                                     {"int32", at::kInt},
                                                                     {"uint64", at::kUInt64},
                                                                     {"int64", at::kLong},
                                                                     {"float16", at::kHalf},
                                                                     {"float32", at::kFloat},
                                                                     {"float64", at::kDouble},
                                                                     {"complex64", at::kComplexFloat},
                                                                     {"complex128", at::kComplexDouble}};
  for (const auto& [name, dtype] : types) {
    INFO(name);
    const auto dataset = MappedArrayDataset::open_npy(dir / (name + ".npy"), "x").value();
    CHECK(dataset->fields() == std::vector<FieldSpec>{{"x", dtype, {3, 2}}});
    auto loader =
        Prefetcher::create(dataset, SequentialSampler(dataset->size()), {.batch_size = dataset->size()}).value();
    const auto batch = loader->next().value();
    const at::Tensor x = (*batch)["x"].to(at::kComplexDouble);
    const at::Tensor expected = torch::arange(30).reshape({5, 3, 2}).to(dtype).to(at::kComplexDouble);
    CHECK(x.equal(expected));
  }
  CHECK(MappedArrayDataset::open_npy(dir / "line.npy", "x").value()->fields()[0].shape.empty());
  for (const std::string bad : {"fortran", "record", "object", "big_endian", "scalar", "text"}) {
    INFO(bad);
    CHECK_FALSE(MappedArrayDataset::open_npy(dir / (bad + ".npy"), "x").ok());
  }
}

}  // namespace
}  // namespace trainkit
