// A NumPy archive, stored or deflated; rows of an array equal those of the whole.
#include <ATen/Functions.h>

#include "arrays/npz_bytes.h"
#include "source.h"
#include "target.h"
#include "trainkit/arrays/array_file.h"

namespace trainkit::fuzz::npz {

std::vector<std::string> seeds() {
  require(write_npy(folder() + "/seed.npy", at::arange(24, at::kShort).view({4, 3, 2})).ok(), "a seed");
  const std::string npy = read_bytes(folder() + "/seed.npy");
  std::vector<std::string> files;
  for (const bool deflate : {false, true}) {
    files.push_back(test::npz_bytes({{"cube.npy", npy}, {"group/other.npy", npy}}, deflate));
    files.push_back(test::npz_bytes({{"a.npy", npy}, {"note.txt", "words"}}, deflate));
  }
  return files;
}

int test_one_input(const uint8_t* data, size_t size) {
  check_source(write_bytes("input.npz", as_text(data, size)));
  return 0;
}

const Registered target("npz", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::npz
