// Plain HDF5 files: layouts and groups, truncated and damaged files, and contents that are refused.
#include <ATen/Functions.h>
#include <hdf5.h>

#include <fstream>
#include <functional>

#include "arrays/first_error.h"
#include "arrays/hdf5/hdf5_handle.h"
#include "arrays/mat_bytes.h"
#include "mutated.h"
#include "test_util.h"
#include "trainkit/arrays/array_source.h"

using namespace trainkit;
using test::first_error;
using test::id_of;
using test::read_bytes;
using test::write_bytes;

namespace {

/// Creates a file; `fill` writes its objects.
void make_file(const std::string& path, const std::function<void(hid_t)>& fill, hsize_t user_block = 0) {
  const trainkit::detail::Hdf5Session session;
  const hid_t properties = H5Pcreate(H5P_FILE_CREATE);
  H5Pset_userblock(properties, user_block);
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, properties, H5P_DEFAULT);
  REQUIRE(file >= 0);
  fill(file);
  H5Pclose(properties);
  REQUIRE(H5Fclose(file) >= 0);
}

constexpr int64_t kRows = 6, kColumns = 5;

at::Tensor expected() { return at::arange(kRows * kColumns, at::kShort).view({kRows, kColumns}); }

using Properties = std::function<void(hid_t)>;

void add_array(hid_t group, const char* name, const Properties& set, hid_t type = H5T_STD_I16LE, bool write = true) {
  const hsize_t sizes[] = {kRows, kColumns};
  const hid_t space = H5Screate_simple(2, sizes, nullptr), properties = H5Pcreate(H5P_DATASET_CREATE);
  set(properties);
  const hid_t dataset = H5Dcreate2(group, name, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
  REQUIRE(dataset >= 0);
  const at::Tensor values = expected();
  if (write) REQUIRE(H5Dwrite(dataset, H5T_NATIVE_INT16, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.const_data_ptr()) >= 0);
  H5Dclose(dataset);
  H5Pclose(properties);
  H5Sclose(space);
}

void chunk(hid_t properties, hsize_t rows, hsize_t columns) {
  const hsize_t sizes[] = {rows, columns};
  H5Pset_chunk(properties, 2, sizes);
}

const std::vector<std::pair<std::string, Properties>>& layouts() {
  static const std::vector<std::pair<std::string, Properties>> all = {
      {"contiguous", [](hid_t) {}},
      {"compact", [](hid_t p) { H5Pset_layout(p, H5D_COMPACT); }},
      {"chunked", [](hid_t p) { chunk(p, 4, 2); }},
      {"gzip", [](hid_t p) { chunk(p, 1, 5), H5Pset_deflate(p, 5); }},
      {"shuffled", [](hid_t p) { chunk(p, 4, 3), H5Pset_shuffle(p), H5Pset_deflate(p, 5); }}};
  return all;
}

}  // namespace

TEST_CASE("Datasets of every layout, byte order and group are read, whole and by rows", "[arrays][hdf5]") {
  const test::TempDir folder;
  for (const hsize_t user_block : {0, 1024}) {
    make_file(
        folder / "f.bin",
        [](hid_t file) {
          for (const auto& [name, properties] : layouts()) {
            add_array(file, name.c_str(), properties);
            add_array(file, (name + "_big").c_str(), properties, H5T_STD_I16BE);
          }
          const hid_t group = H5Gcreate2(file, "group", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
          const hid_t inner = H5Gcreate2(group, "inner", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
          add_array(inner, "x", layouts()[4].second);
          H5Gclose(inner);
          H5Gclose(group);
        },
        user_block);
    const auto source = ArraySource::open(folder / "f.bin").value();
    CHECK(source->format() == "an HDF5 file");
    REQUIRE(source->arrays().size() == 11);
    for (const ArrayInfo& array : source->arrays()) {
      CAPTURE(array.name, user_block);
      CHECK(array.type == "int16");
      CHECK(array.sizes == std::vector<int64_t>{kRows, kColumns});
      const auto whole = source->read(array.name);
      REQUIRE(whole.status() == absl::OkStatus());
      CHECK(whole->equal(expected()));
      for (int64_t begin = 0; begin < kRows; ++begin) {
        for (int64_t count = 1; begin + count <= kRows; ++count) {
          CHECK(source->read_rows(array.name, begin, count)->equal(expected().narrow(0, begin, count)));
        }
      }
    }
    CHECK(source->read("group/inner/x").ok());
    CHECK_THAT(error_line(source->read("none").status()), Catch::Contains("none: no such array (expected 'chunked'"));
  }
}

TEST_CASE("A truncated HDF5 file is a named error at every tested length", "[arrays][hdf5]") {
  const test::TempDir folder;
  make_file(folder / "f.h5", [](hid_t file) {
    add_array(file, "x", layouts()[0].second);
    add_array(file, "y", layouts()[4].second);
  });
  const std::string bytes = read_bytes(folder / "f.h5");
  for (size_t length = 0; length < bytes.size(); length += length < 100 ? 1 : 61) {
    CAPTURE(length, bytes.size());
    write_bytes(folder / "part.h5", bytes.substr(0, length));
    const absl::Status status = first_error(folder / "part.h5");
    REQUIRE(id_of(status) == "data.hdf5");
    REQUIRE(error_line(status).find("part.h5") != std::string::npos);
  }
}

TEST_CASE("Contents of an HDF5 file that are not read are refused by name", "[arrays][hdf5]") {
  const test::TempDir folder;
  const std::string path = folder / "f.h5";
  make_file(folder / "other.h5", [](hid_t file) { add_array(file, "x", layouts()[0].second); });
  write_bytes(folder / "numbers", std::string(60, '\7'));
  const auto array = [](const Properties& set, hid_t type = H5T_STD_I16LE, bool write = true) {
    return [=](hid_t file) { add_array(file, "x", set, type, write); };
  };
  const std::vector<std::pair<std::string, std::function<void(hid_t)>>> faults = {
      {"its data is in other files",
       array([&](hid_t p) { H5Pset_external(p, (folder / "numbers").c_str(), 0, 60); }, H5T_STD_I16LE, false)},
      {"not an array of real numbers: link",
       [&](hid_t file) {
         H5Lcreate_external((folder / "other.h5").c_str(), "/x", file, "x", H5P_DEFAULT, H5P_DEFAULT);
       }},
      {"virtual view of other datasets", array(
                                             [&](hid_t p) {
                                               const hsize_t sizes[] = {kRows, kColumns};
                                               const hid_t space = H5Screate_simple(2, sizes, nullptr);
                                               H5Pset_virtual(p, space, (folder / "other.h5").c_str(), "/x", space);
                                               H5Sclose(space);
                                             },
                                             H5T_STD_I16LE, false)},
      {"filter 3 of HDF5 is not read (only shuffle and gzip are)",
       array([](hid_t p) { chunk(p, 3, 2), H5Pset_fletcher32(p); })},
      {"another filter follows", array([](hid_t p) { chunk(p, 3, 2), H5Pset_deflate(p, 5), H5Pset_shuffle(p); })},
      {"a chunk of it is missing", array([](hid_t p) { chunk(p, 3, 2); }, H5T_STD_I16LE, false)},
      {"needs 60 bytes of data, the file has 0", array([](hid_t) {}, H5T_STD_I16LE, false)},
      {"not an array of real numbers: string", array([](hid_t) {}, H5T_C_S1, false)},
  };
  for (const auto& [problem, fill] : faults) {
    make_file(path, fill);
    const absl::Status status = first_error(path);
    INFO(problem << ": " << error_line(status));
    CHECK(id_of(status) == "data.hdf5");
    CHECK(exit_code(status) == ExitCode::kData);
    CHECK_THAT(error_line(status), Catch::Contains(path + ": x: ") && Catch::Contains(problem));
  }
}

TEST_CASE("A chunk that inflates beyond its size is refused", "[arrays][hdf5]") {
  const test::TempDir folder;
  make_file(folder / "f.h5", [](hid_t file) {
    add_array(file, "x", [](hid_t p) { chunk(p, kRows, kColumns), H5Pset_deflate(p, 5); });
    const std::string bomb = test::MatBytes::deflated(std::string(64 << 20, '\0'));
    const hid_t dataset = H5Dopen2(file, "x", H5P_DEFAULT);
    const hsize_t origin[] = {0, 0};
    REQUIRE(H5Dwrite_chunk(dataset, H5P_DEFAULT, 0, origin, bomb.size(), bomb.data()) >= 0);
    H5Dclose(dataset);
  });
  CHECK_THAT(error_line(first_error(folder / "f.h5")),
             Catch::Contains("x: the compressed data continues after the variable"));
}

TEST_CASE("No damaged HDF5 file ends the process, and an error has a name", "[arrays][hdf5]") {
  const test::TempDir folder;
  make_file(folder / "f.h5", [](hid_t file) {
    add_array(file, "x", layouts()[0].second);
    add_array(file, "y", layouts()[4].second);
    add_array(file, "z", layouts()[2].second);
  });
  const std::string bytes = read_bytes(folder / "f.h5");
  int refused = 0;
  for (int number = 0; number < (test::is_full() ? 20'000 : 200); ++number) {
    CAPTURE(number);
    write_bytes(folder / "bad.h5", test::mutated(bytes, number));
    const absl::Status status = first_error(folder / "bad.h5");
    REQUIRE((status.ok() || id_of(status) == "data.hdf5"));
    refused += !status.ok();
  }
  CHECK(refused > 20);
}
