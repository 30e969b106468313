// What libFuzzer's main calls in fuzz_<target>, with an extra mode: `fuzz_x --write_seeds DIR` writes seeds() there and
// exits.
#include <filesystem>
#include <fstream>
#include <string_view>

#include "target.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc != 3 || std::string_view((*argv)[1]) != "--write_seeds") return 0;
  const std::filesystem::path folder = (*argv)[2];
  std::filesystem::create_directories(folder);
  int number = 0;
  for (const std::string& seed : trainkit::fuzz::targets().at(0).seeds()) {
    std::ofstream(folder / ("seed-" + std::to_string(number++)), std::ios::binary) << seed;
  }
  std::exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto test_one_input = trainkit::fuzz::targets().at(0).test_one_input;
  return test_one_input(data, size);
}
