// NumPy archives and HDF5 files as NumPy and h5py write them.
#include <absl/strings/str_replace.h>

#include <cstring>
#include <filesystem>

#include "reference_util.h"
#include "test_util.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/arrays/array_source.h"

using namespace trainkit;

namespace {

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.is_contiguous() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

}  // namespace

TEST_CASE("Archives of NumPy and HDF5 files of h5py are read as Python reads them, whole and by rows",
          "[arrays][source]") {
  if (!test::python_has("numpy h5py")) TRAINKIT_SKIP("no Python with NumPy and h5py");
  const test::TempDir folder;
  test::run_reference("array_files.py", folder.path().string());
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    const std::string path = entry.path().string();
    if (path.ends_with(".npy")) continue;
    CAPTURE(path);
    const auto source = ArraySource::open(path);
    REQUIRE(source.status() == absl::OkStatus());
    int arrays = 0;
    for (const ArrayInfo& array : (*source)->arrays()) {
      CAPTURE(array.name, array.type);
      const std::string file = folder / (absl::StrReplaceAll(array.name, {{"/", "."}}) + ".npy");
      CHECK(array.dtype.has_value() == std::filesystem::exists(file));
      const auto ours = (*source)->read(array.name);
      INFO(ours.status());
      REQUIRE(ours.ok() == array.dtype.has_value());
      if (!ours.ok()) continue;
      const at::Tensor theirs = read_npy(file).value();
      CHECK(same_bits(*ours, theirs));
      ++arrays;
      if (theirs.dim() == 0 || theirs.size(0) < 2) continue;
      const auto rows = (*source)->read_rows(array.name, 1, theirs.size(0) - 1);
      REQUIRE(rows.status() == absl::OkStatus());
      CHECK(same_bits(*rows, theirs.narrow(0, 1, theirs.size(0) - 1)));
    }
    ++files;
    const bool is_h5 = path.ends_with(".h5") && path.find("after_512") == std::string::npos;
    CHECK(arrays == (is_h5 ? 10 : path.ends_with(".h5") ? 1 : 9));
    CHECK((*source)->numbers("wavelength").value().size() == (is_h5 ? 3 : 0));
    CHECK((*source)->numbers("gain").value() == (is_h5 ? std::vector<double>{3} : std::vector<double>{}));
  }
  CHECK(files == 11);
}
