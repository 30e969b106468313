// A `.mat` file of version 7.3, which HDF5 reads through our driver.
#include "mat.h"
#include "matlab73/write_mat73.h"

namespace trainkit::fuzz::mat73 {

std::vector<std::string> seeds() { return mat_seeds(test::write_mat73); }

int test_one_input(const uint8_t* data, size_t size) {
  static MemoryFile memory;
  check_mat(memory.write(as_text(data, size)), test::write_mat73);
  return 0;
}

const Registered target("mat73", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::mat73
