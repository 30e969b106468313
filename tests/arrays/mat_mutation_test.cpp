// Thousands of damaged files, read in child processes: whatever HDF5 would do to the process is seen.
#include <atomic>
#include <iostream>

#include "arrays/mat_bytes.h"
#include "io/mutations.h"
#include "matlab73/write_mat73.h"
#include "test_util.h"
#include "trainkit/arrays/mat.h"

using namespace trainkit;
using test::read_bytes;
using test::write_bytes;

namespace {

/// Results of the children in shared memory.
struct Tally {
  std::atomic<int> read{0}, refused{0}, unnamed{0};
};

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

}  // namespace

TEST_CASE("No mutation of a file ends the process or gives an error without a name", "[io][mat]") {
  const int count = test::is_full() ? 100'000 : 250;
  const test::TempDir folder;
  const std::vector<std::pair<std::string, at::Tensor>> variables = {
      {"cube", torch::arange(3 * 4 * 5, torch::kShort).view({3, 4, 5})},
      {"truth", torch::ones({3, 4}, torch::kByte)},
      {"flag", torch::ones({1, 2}, torch::kBool)}};
  for (const bool is_73 : {false, true}) {
    REQUIRE((is_73 ? test::write_mat73 : write_mat)(folder / "f.mat", variables).ok());
    const test::Shared<Tally> shared;
    Tally& tally = *shared;
    const std::string bytes = read_bytes(folder / "f.mat");
    const std::vector<int> ended = test::ended_by(count, [&](int number) {
      write_bytes(folder / "f.mat", test::mutated(bytes, number, is_73 ? 512 : 116));
      read_all(folder / "f.mat", tally);
    });
    std::cout << (is_73 ? "version 7.3: " : "version 5: ") << bytes.size() << " bytes, " << tally.read << " read, "
              << tally.refused << " refused, " << ended.size() << " ended the process" << std::endl;
    CAPTURE(ended);
    CHECK(ended.empty());
    CHECK(tally.unnamed == 0);
    CHECK(tally.refused > count / 10);
  }
}
