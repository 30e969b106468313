// Thousands of damaged files, read in child processes: whatever libmatio or HDF5 would do to the process is seen.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <iostream>

#include "io/mat_bytes.h"
#include "test_util.h"
#include "trainkit/core/random.h"
#include "trainkit/io/mat.h"

using namespace trainkit;
using test::read_bytes;
using test::write_bytes;

namespace {

/// What the children tell, in memory that they share.
struct Tally {
  std::atomic<int> next{0}, read{0}, refused{0}, unnamed{0};
};

std::string mutated(std::string bytes, int number, size_t first) {
  RandomStream random(hash_key(7, number));
  const auto place = [&] { return first + random.below(bytes.size() - first); };
  for (uint64_t edits = 1 + random.below(4); edits > 0; --edits) {
    const size_t at = place();
    switch (random.below(5)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(random.below(256));
        break;
      case 2:
        bytes.replace(at, std::min<size_t>(8, bytes.size() - at),
                      std::string(std::min<size_t>(8, bytes.size() - at), random.below(2) ? '\xff' : '\0'));
        break;
      case 3:
        bytes[at] = static_cast<char>(bytes[at] + (random.below(2) ? 1 : -1));
        break;
      default: {
        const size_t from = place(), size = std::min<size_t>(8, bytes.size() - std::max(at, from));
        bytes.replace(at, size, std::string(bytes, from, size));
      }
    }
  }
  return bytes;
}

void read_all(const std::string& path, Tally& tally) {
  const auto file = MatFile::open(path, {.max_variable_bytes = 64 << 20});
  absl::Status status = file.status();
  if (file.ok()) {
    for (const MatVariable& variable : file->variables()) {
      if (auto tensor = file->read(variable.name); !tensor.ok()) status = tensor.status();
    }
  }
  if (status.ok()) {
    ++tally.read;
  } else if (error_of(status).value_or(Error{}).id == "data.mat") {
    ++tally.refused;
  } else {
    std::cerr << status << std::endl;
    ++tally.unnamed;
  }
}

/// Reads mutations [0, count) of `bytes`; the numbers of those that ended the process that read them.
std::vector<int> lost(const std::string& bytes, size_t first, int count, Tally& tally) {
  const test::TempDir folder;
  std::vector<int> numbers;
  while (tally.next < count) {
    const pid_t child = ::fork();
    if (child == 0) {
      const rlimit no_core{0, 0};
      ::setrlimit(RLIMIT_CORE, &no_core);
      while (tally.next < count) {
        ::alarm(20);
        write_bytes(folder / "f.mat", mutated(bytes, tally.next, first));
        read_all(folder / "f.mat", tally);
        ++tally.next;
      }
      ::_exit(0);
    }
    int how = 0;
    REQUIRE(::waitpid(child, &how, 0) == child);
    if (!WIFEXITED(how) || WEXITSTATUS(how) != 0) numbers.push_back(tally.next++);
  }
  return numbers;
}

}  // namespace

TEST_CASE("No mutation of a file ends the process or leaves an error unnamed", "[io][mat]") {
  const int count = test::environment("TRAINKIT_TEST_FULL").empty() ? 1500 : 100'000;
  const test::TempDir folder;
  const std::vector<std::pair<std::string, at::Tensor>> variables = {
      {"cube", torch::arange(3 * 4 * 5, torch::kShort).view({3, 4, 5})},
      {"truth", torch::ones({3, 4}, torch::kByte)},
      {"flag", torch::ones({1, 2}, torch::kBool)}};
  for (const MatVersion version : {MatVersion::k5, MatVersion::k73}) {
    REQUIRE(write_mat(folder / "f.mat", variables, version).ok());
    void* memory = ::mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    Tally& tally = *new (memory) Tally;
    const std::string bytes = read_bytes(folder / "f.mat");
    const std::vector<int> ended = lost(bytes, version == MatVersion::k5 ? 116 : 512, count, tally);
    std::cout << (version == MatVersion::k5 ? "version 5: " : "version 7.3: ") << bytes.size() << " bytes, "
              << tally.read << " read, " << tally.refused << " refused, " << ended.size() << " ended the process"
              << std::endl;
    CAPTURE(ended);
    CHECK(ended.empty());
    CHECK(tally.unnamed == 0);
    CHECK(tally.refused > count / 10);
    ::munmap(memory, sizeof(Tally));
  }
}
