// A `.mat` file of version 7.3, which HDF5 reads through our driver.
#include "mat.h"

using namespace trainkit;

std::vector<std::string> fuzz::seeds() { return mat_seeds(MatVersion::k73); }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::MemoryFile memory;
  fuzz::check_mat(memory.write(fuzz::as_text(data, size)), MatVersion::k73);
  return 0;
}
