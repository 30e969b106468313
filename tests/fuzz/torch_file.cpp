// A PyTorch file, zip archive or legacy.
#include "torch_file.h"

#include <ATen/Functions.h>

#include "io/torch/torch_bytes.h"

namespace trainkit::fuzz::torch_file {

using namespace test;

std::vector<std::string> seeds() {
  const at::Tensor tied = at::arange(6).view({2, 3});
  const NamedTensors tensors = {{"fc.weight", tied},
                                {"head.weight", tied},
                                {"flag", at::ones({2}, at::kBool)},
                                {"half", at::ones({3}, at::kHalf)}};
  std::vector<std::string> files;
  for (const NamedTensors& some : {tensors, NamedTensors{tensors[0]}, NamedTensors{}}) {
    require(save_torch_file(Fs::posix(), folder() + "/seed.pt", some).ok(), "a seed");
    files.push_back(read_bytes(folder() + "/seed.pt"));
  }
  const std::string tensor = p_tensor(p_storage("FloatStorage", "7", p_int(4)), p_int(0), "K\2K\2\x86", "K\2K\1\x86");
  files.push_back(legacy_of(pickled_a(tensor), {{"7", std::string(16, '\x3f')}}));
  files.push_back(legacy_of(pickled("}")));
  write_zip(folder() + "/seed.zip", archive_of(pickled("}")), 1);  // with 64-bit numbers
  files.push_back(read_bytes(folder() + "/seed.zip"));
  return files;
}

int test_one_input(const uint8_t* data, size_t size) {
  static MemoryFile memory;
  check_torch_file(memory.write(as_text(data, size)));
  return 0;
}

const Registered target("torch_file", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::torch_file
