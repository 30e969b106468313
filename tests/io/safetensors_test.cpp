#include "trainkit/io/safetensors.h"

#include "test_util.h"

using namespace trainkit;

TEST_CASE("Tensors come back as they were written", "[io][safetensors]") {
  test::TempDir dir;
  const std::string path = dir / "m.safetensors";
  const NamedTensors written = {{"b", torch::randn({3, 4})},
                                {"a", torch::arange(6).view({2, 3}).t()},
                                {"flag", torch::tensor({true, false})},
                                {"half", torch::randn({5}).to(torch::kHalf)},
                                {"none", torch::empty({0, 7})},
                                {"scalar", torch::tensor(1.5)}};
  REQUIRE(save_safetensors(Fs::posix(), path, written, {{"format", "pt"}}).ok());
  const auto file = SafetensorsFile::open(path).value();
  CHECK(file.metadata() == SafetensorsMetadata{{"format", "pt"}});
  CHECK(file.entries().size() == written.size());
  for (const auto& [name, tensor] : written) {
    const at::Tensor read = file.tensor(name).value();
    CHECK(read.dtype() == tensor.dtype());
    CHECK(read.is_contiguous());
    CHECK(torch::equal(read, tensor));
  }
}
