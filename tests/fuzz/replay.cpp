// main of fuzz_replay, the targets without libFuzzer: `fuzz_replay TARGET [PATH...]` runs the target's seeds, every
// prefix of each, mutations of them, and the files and folders on the command line (the repository's corpus). A finding
// aborts, and the input is kept.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "mutated.h"
#include "target.h"

using namespace trainkit;

namespace {

// The current input, for the signal handler: a buffer that needs no allocator.
char running[256] = "nothing";
std::string input;

extern "C" void keep_input(int signal) {
  constexpr char kPath[] = "fuzz-finding";
  std::ofstream(kPath, std::ios::binary) << input;
  std::cerr << "signal " << signal << " at " << running << "; its input is kept as ./" << kPath << std::endl;
  std::_Exit(128 + signal);
}

void run(const fuzz::Target& target, const std::string& bytes, const std::string& name) {
  input = bytes;
  std::strncpy(running, name.c_str(), sizeof running - 1);
  // A copy of the exact size, so that a sanitizer detects reads past the end.
  const std::vector<uint8_t> copy(bytes.begin(), bytes.end());
  target.test_one_input(copy.data(), copy.size());
}

int replay(const fuzz::Target& target, const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return run(target, fuzz::read_bytes(path), path), 1;
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path)) count += replay(target, entry.path());
  return count;
}

int run_seeds(const fuzz::Target& target) {
  const bool is_full = std::getenv("TRAINKIT_TEST_FULL") != nullptr;
  const size_t prefixes = is_full ? 600 : 60;
  const int mutations = is_full ? 2000 : 120;
  int count = 0;
  const std::vector<std::string> seeds = target.seeds();
  for (size_t i = 0; i < seeds.size(); ++i) {
    const std::string name = "seed " + std::to_string(i);
    run(target, seeds[i], name), ++count;
    const size_t step = seeds[i].size() / prefixes + 1;
    for (size_t size = 0; size < seeds[i].size(); size += step, ++count)
      run(target, seeds[i].substr(0, size), name + " cut to " + std::to_string(size));
    for (int number = 0; number < mutations && !seeds[i].empty(); ++number, ++count)
      run(target, test::mutated(seeds[i], number), name + " mutation " + std::to_string(number));
  }
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  const auto& targets = fuzz::targets();
  const auto target =
      std::find_if(targets.begin(), targets.end(), [&](const auto& t) { return argc > 1 && t.name == argv[1]; });
  if (target == targets.end()) {
    std::cerr << "usage: fuzz_replay TARGET [PATH...]; targets:";
    for (const fuzz::Target& known : targets) std::cerr << " " << known.name;
    std::cerr << std::endl;
    return 2;
  }
  for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGBUS, SIGILL}) std::signal(signal, &keep_input);
  int count = run_seeds(*target);
  for (int i = 2; i < argc; ++i) count += replay(*target, argv[i]);
  std::cout << count << " inputs, no finding" << std::endl;
}
