// A `.mat` file of version 5.
#include "arrays/mat_bytes.h"
#include "mat.h"

using namespace trainkit;

std::vector<std::string> fuzz::seeds() {
  std::vector<std::string> files = mat_seeds(MatVersion::k5);
  const test::MatBytes big(true), little(false);
  files.push_back(big.header() + big.array());
  files.push_back(little.header() + little.array() + little.array({.class_number = 4, .name = "text"}));
  return files;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::MemoryFile memory;
  fuzz::check_mat(memory.write(fuzz::as_text(data, size)), MatVersion::k5);
  return 0;
}
