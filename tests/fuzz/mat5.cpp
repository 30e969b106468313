// A `.mat` file of version 5.
#include "arrays/mat_bytes.h"
#include "mat.h"

namespace trainkit::fuzz::mat5 {

std::vector<std::string> seeds() {
  std::vector<std::string> files = mat_seeds(write_mat);
  const test::MatBytes big(true), little(false);
  files.push_back(big.header() + big.array());
  files.push_back(little.header() + little.array() + little.array({.class_number = 4, .name = "text"}));
  return files;
}

int test_one_input(const uint8_t* data, size_t size) {
  static MemoryFile memory;
  check_mat(memory.write(as_text(data, size)), write_mat);
  return 0;
}

const Registered target("mat5", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::mat5
