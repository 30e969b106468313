// A NumPy file; an accepted file gives the same when written and read again.
#include <ATen/Functions.h>

#include "target.h"
#include "trainkit/arrays/array_file.h"

namespace trainkit::fuzz::npy {

std::vector<std::string> seeds() {
  std::vector<std::string> files;
  for (const at::Tensor& tensor : {at::arange(6).view({2, 3}), at::ones({4}, at::kBool), at::scalar_tensor(2.5),
                                   at::empty({0, 3}, at::kShort), at::ones({1, 2, 2}, at::kComplexFloat)}) {
    require(write_npy(folder() + "/seed.npy", tensor).ok(), "a seed");
    files.push_back(read_bytes(folder() + "/seed.npy"));
  }
  std::string fortran = files[0];
  fortran.replace(fortran.find("False"), 5, "True ");
  files.push_back(fortran);
  return files;
}

int test_one_input(const uint8_t* data, size_t size) {
  static MemoryFile memory;
  const auto tensor = read_npy(memory.write(as_text(data, size)));
  if (!tensor.ok()) return require_named(tensor.status(), {"data."}), 0;
  require(tensor->nbytes() <= size, "the array is not larger than the file");
  const std::string path = folder() + "/again.npy";
  require(write_npy(path, *tensor).ok(), "an array that was read can be written");
  const auto again = read_npy(path);
  require(again.ok() && same_bits(*again, *tensor), "and is read back: " + again.status().ToString());
  return 0;
}

const Registered target("npy", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::npy
