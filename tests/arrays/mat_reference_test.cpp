// Our reader and writer compared with SciPy's, h5py's and the real scenes.
#include <filesystem>

#include "reference_util.h"
#include "test_util.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/arrays/mat.h"

using namespace trainkit;

namespace {

bool has_scipy() { return test::python_has("scipy.io h5py"); }

}  // namespace

TEST_CASE("Real scenes are read as SciPy reads them", "[io][mat]") {
  if (!has_scipy() || test::data_dir().empty()) TRAINKIT_SKIP("no Python with SciPy, or no TRAINKIT_TEST_DATA");
  int arrays = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::data_dir() + "/hsi")) {
    if (entry.path().extension() != ".mat") continue;
    CAPTURE(entry.path().string());
    const test::TempDir folder;
    test::run_reference("mat_to_npy.py", entry.path().string() + " " + folder.path().string());
    const auto file = MatFile::open(entry.path().string());
    REQUIRE(file.status() == absl::OkStatus());
    for (const MatVariable& variable : file->variables()) {
      CAPTURE(variable.name);
      const auto ours = file->read(variable.name), theirs = read_npy(folder / (variable.name + ".npy"));
      REQUIRE(ours.status() == absl::OkStatus());
      REQUIRE(theirs.status() == absl::OkStatus());
      CHECK(ours->scalar_type() == theirs->scalar_type());
      CHECK(at::equal(ours->to(at::kDouble), theirs->to(at::kDouble)));
      ++arrays;
    }
  }
  CHECK(arrays >= 6);
}

TEST_CASE("Python reads the files that we write", "[io][mat]") {
  if (!has_scipy()) TRAINKIT_SKIP("no Python with SciPy and h5py");
  const test::TempDir folder;
  std::vector<std::pair<std::string, at::Tensor>> variables = {{"flag", torch::tensor({true, false}).view({1, 2})}};
  for (const auto type : {at::kByte, at::kChar, at::kShort, at::kUInt16, at::kInt, at::kUInt32, at::kLong, at::kUInt64,
                          at::kFloat, at::kDouble}) {
    variables.emplace_back(std::string("of_") + c10::toString(type), torch::randint(0, 100, {2, 3, 4}).to(type));
  }
  REQUIRE(write_mat(folder / "ours.mat", variables).ok());
  test::run_reference("mat_to_npy.py", (folder / "ours.mat") + " " + folder.path().string());
  for (const auto& [name, tensor] : variables) {
    CAPTURE(name);
    const auto theirs = read_npy(folder / (name + ".npy"));
    REQUIRE(theirs.status() == absl::OkStatus());
    CHECK(theirs->sizes() == tensor.sizes());
    CHECK(at::equal(theirs->to(at::kDouble), tensor.to(at::kDouble)));
  }
}

TEST_CASE("Files that Python writes are read correctly", "[io][mat]") {
  if (!has_scipy()) TRAINKIT_SKIP("no Python with SciPy and h5py");
  const test::TempDir folder;
  test::run_reference("mat_files.py", folder.path().string());
  for (const std::string name : {"plain.mat", "compressed.mat", "big_endian.mat", "hdf5.mat"}) {
    CAPTURE(name);
    const auto file = MatFile::open(folder / name);
    REQUIRE(file.status() == absl::OkStatus());
    int arrays = 0;
    for (const MatVariable& variable : file->variables()) {
      CAPTURE(variable.name, variable.type);
      const auto ours = file->read(variable.name);
      const bool readable = std::filesystem::exists(folder / (variable.name + ".npy"));
      INFO(error_line(ours.status()));
      CHECK(ours.ok() == readable);
      if (!ours.ok() || !readable) continue;
      const at::Tensor theirs = read_npy(folder / (variable.name + ".npy")).value();
      CHECK(ours->sizes() == theirs.sizes());
      CHECK(at::equal(ours->to(at::kDouble), theirs.to(at::kDouble)));
      ++arrays;
    }
    CHECK(arrays == 5);
  }
}
