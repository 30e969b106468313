// Archives of NumPy arrays: damaged ones, and ones that no reader should trust.
#include <ATen/Functions.h>

#include "arrays/first_error.h"
#include "arrays/npz_bytes.h"
#include "temp_dir.h"
#include "test_util.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/arrays/array_source.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

std::string npy_of(const TempDir& dir, const at::Tensor& tensor) {
  REQUIRE(write_npy(dir / "one.npy", tensor).ok());
  return read_bytes(dir / "one.npy");
}

}  // namespace

TEST_CASE("Arrays of an archive are read by name, stored or deflated, whole or by rows", "[arrays][npz]") {
  const TempDir dir;
  const at::Tensor cube = at::arange(60, at::kShort).view({5, 4, 3}), mask = at::tensor({1, 0, 1}).to(at::kBool);
  std::string columns = npy_of(dir, cube);
  columns.replace(columns.find("False"), 5, "True ");
  const std::vector<std::pair<std::string, std::string>> members = {{"cube.npy", npy_of(dir, cube)},
                                                                    {"group/mask.npy", npy_of(dir, mask)},
                                                                    {"columns.npy", columns},
                                                                    {"note.txt", "words"}};
  for (const bool deflate : {false, true}) {
    write_bytes(dir / "a.bin", npz_bytes(members, deflate));
    const auto source = ArraySource::open(dir / "a.bin");
    REQUIRE(source.status() == absl::OkStatus());
    CHECK((*source)->format() == "a NumPy archive");
    CHECK((*source)->reads_rows("cube") != deflate);
    CHECK((*source)->read("cube")->equal(cube));
    CHECK((*source)->read("group/mask")->equal(mask));
    const at::Tensor fortran = cube.view({3, 4, 5}).permute({2, 1, 0});
    CHECK((*source)->read("columns")->equal(fortran));
    CHECK((*source)->read_rows("columns", 1, 3)->equal(fortran.narrow(0, 1, 3)));
    CHECK((*source)->read_rows("cube", 2, 2)->equal(cube.narrow(0, 2, 2)));
    CHECK_THAT(error_line((*source)->read("note.txt").status()), Catch::Contains("a.bin: note.txt: not an array"));
    CHECK_THAT(
        error_line((*source)->read("none").status()),
        Catch::Contains("error[data.npz]") && Catch::Contains("none: no such array (expected 'columns', 'cube'"));
  }
}

TEST_CASE("A truncated or changed archive is an error that names the file, and the member", "[arrays][npz]") {
  const TempDir dir;
  const std::string path = dir / "a.npz";
  const std::string npy = npy_of(dir, at::arange(40, at::kInt).view({8, 5}));
  for (const bool deflate : {false, true}) {
    const std::string whole = npz_bytes({{"a.npy", npy}, {"b.npy", npy}}, deflate);
    for (size_t length = 0; length < whole.size(); length += 3) {
      write_bytes(path, whole.substr(0, length));
      const absl::Status status = first_error(path);
      CAPTURE(deflate, length);
      REQUIRE(id_of(status) == "data.npz");
      REQUIRE(error_line(status).find(path) != std::string::npos);
    }
    std::string changed = whole;
    changed[changed.find("NUMPY") == std::string::npos ? 60 : changed.find("\x07\0\0\0")] ^= 4;
    write_bytes(path, changed);
    const absl::Status status = first_error(path);
    INFO(error_line(status));
    CHECK(id_of(status) == "data.npz");
    CHECK_THAT(error_line(status), Catch::Contains("a.npz: a: "));
  }
  std::string changed = npz_bytes({{"a.npy", npy}}, false);
  changed[changed.find(std::string("\x07\0\0\0", 4))] ^= 4;
  write_bytes(path, changed);
  const auto source = ArraySource::open(path).value();
  CHECK_THAT(error_line(source->read_rows("a", 0, 1).status()), Catch::Contains("a.npz: a: damaged: its CRC differs"));
}

TEST_CASE("An archive that lies about its members is refused", "[arrays][npz]") {
  const TempDir dir;
  const std::string path = dir / "a.npz";
  const std::string npy = npy_of(dir, at::zeros({2, 2}));
  const auto refused = [&](const std::string& bytes) {
    write_bytes(path, bytes);
    const absl::Status status = first_error(path);
    CHECK(exit_code(status) == ExitCode::kData);
    return error_line(status);
  };
  CHECK_THAT(refused(npz_bytes({{"a.npy", npy}, {"a.npy", npy}}, false)), Catch::Contains("is a duplicate name"));
  CHECK_THAT(refused(npz_bytes({{"../a.npy", npy}}, false)), Catch::Contains("leaves the archive's folder"));
  CHECK_THAT(refused(npz_bytes({{"a.npy", npy}}, true, 12)),
             Catch::Contains("is compressed, which numpy.savez never does") && Catch::Contains("method 12"));
  CHECK_THAT(refused(npz_bytes({{"a.npy", "words"}}, true)), Catch::Contains("a: not a NumPy file"));
  CHECK_THAT(refused(npz_bytes({{"a.npy", npy.substr(0, npy.size() - 1)}}, true)),
             Catch::Contains("a: the file is shorter than its array"));
  CHECK_THAT(refused(npz_bytes({{"a.npy", npy}, {"a", npy}}, true)), Catch::Contains("two members with this name"));
  // A deflated member that claims more than deflate can give.
  std::string bomb = npz_bytes({{"a.npy", npy}}, true);
  const std::string huge("\xff\xff\xff\x7f", 4);
  bomb.replace(22, 4, huge);
  bomb.replace(bomb.find("PK\1\2") + 24, 4, huge);
  CHECK_THAT(refused(bomb), Catch::Contains("has sizes that contradict each other"));
}
