// Files of version 7.3 that are truncated, damaged, or refer to other files.
#include <hdf5.h>

#include <cstring>
#include <filesystem>
#include <functional>

#include "arrays/mat_bytes.h"
#include "matlab73/write_mat73.h"
#include "test_util.h"
#include "trainkit/arrays/mat.h"

using namespace trainkit;
using test::id_of;
using test::read_bytes;
using test::write_bytes;

namespace {

using Variables = std::vector<std::pair<std::string, at::Tensor>>;

/// Creates a file of version 7.3; `fill` writes the HDF5 part.
void make_file(const std::string& path, const std::function<void(hid_t)>& fill) {
  const hid_t properties = H5Pcreate(H5P_FILE_CREATE);
  H5Pset_userblock(properties, 512);
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, properties, H5P_DEFAULT);
  REQUIRE(file >= 0);
  fill(file);
  H5Pclose(properties);
  REQUIRE(H5Fclose(file) >= 0);
  const std::string header = test::MatBytes().header(0x0200);
  std::fstream(path, std::ios::binary | std::ios::in | std::ios::out).write(header.data(), 128);
}

void set_class(hid_t dataset, const std::string& name) {
  const hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
  H5Tset_size(type, name.size());
  const hid_t attribute = H5Acreate2(dataset, "MATLAB_class", type, space, H5P_DEFAULT, H5P_DEFAULT);
  H5Awrite(attribute, type, name.data());
  H5Aclose(attribute);
  H5Sclose(space);
  H5Tclose(type);
}

struct DatasetOptions {
  std::vector<hsize_t> sizes = {3, 2};  // MATLAB's 2 x 3
  hid_t type = H5T_STD_U8LE;
  std::string class_name = "uint8";
  std::function<void(hid_t)> properties = [](hid_t) {};
  bool write = true;
};

void add_dataset(hid_t file, const DatasetOptions& options) {
  const hid_t space = H5Screate_simple(static_cast<int>(options.sizes.size()), options.sizes.data(), nullptr);
  const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
  options.properties(properties);
  const hid_t dataset = H5Dcreate2(file, "x", options.type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
  REQUIRE(dataset >= 0);
  const uint8_t data[] = {1, 2, 3, 4, 5, 6};
  if (options.write) REQUIRE(H5Dwrite(dataset, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
  if (!options.class_name.empty()) set_class(dataset, options.class_name);
  H5Dclose(dataset);
  H5Pclose(properties);
  H5Sclose(space);
}

void chunk(hid_t properties, hsize_t rows, hsize_t columns) {
  const hsize_t sizes[] = {rows, columns};
  H5Pset_chunk(properties, 2, sizes);
}

absl::Status read_x(const std::string& path) {
  const auto file = MatFile::open(path);
  return file.ok() ? file->read("x").status() : file.status();
}

}  // namespace

TEST_CASE("Layouts that MATLAB and others write are read", "[io][mat]") {
  const test::TempDir folder;
  const at::Tensor expected = torch::tensor({{1, 3, 5}, {2, 4, 6}}, torch::kByte);
  const std::vector<std::pair<std::string, std::function<void(hid_t)>>> layouts = {
      {"contiguous", [](hid_t) {}},
      {"compact", [](hid_t p) { H5Pset_layout(p, H5D_COMPACT); }},
      {"chunked", [](hid_t p) { chunk(p, 2, 2); }},
      {"deflated", [](hid_t p) { chunk(p, 2, 1), H5Pset_deflate(p, 5); }},
      {"shuffled", [](hid_t p) { chunk(p, 3, 2), H5Pset_shuffle(p), H5Pset_deflate(p, 5); }}};
  for (const auto& [name, layout] : layouts) {
    CAPTURE(name);
    make_file(folder / "f.mat", [&](hid_t file) { add_dataset(file, {.properties = layout}); });
    const auto file = MatFile::open(folder / "f.mat");
    REQUIRE(file.status() == absl::OkStatus());
    const auto x = file->read("x");
    REQUIRE(x.status() == absl::OkStatus());
    CHECK(at::equal(*x, expected));
  }
  make_file(folder / "f.mat", [&](hid_t file) { add_dataset(file, {.type = H5T_STD_I32BE, .class_name = "int32"}); });
  CHECK(at::equal(MatFile::open(folder / "f.mat")->read("x").value(), expected.to(torch::kInt)));
}

TEST_CASE("A truncated file of version 7.3 is a named error at every tested length", "[io][mat]") {
  const test::TempDir folder;
  const Variables variables = {{"x", torch::rand({40, 50})}, {"y", torch::ones({3, 3})}};
  REQUIRE(test::write_mat73(folder / "f.mat", variables).ok());
  const std::string bytes = read_bytes(folder / "f.mat");
  for (size_t length = 0; length < bytes.size(); length += length < 700 ? 1 : 37) {
    CAPTURE(length, bytes.size());
    write_bytes(folder / "part.mat", bytes.substr(0, length));
    REQUIRE(id_of(MatFile::open(folder / "part.mat").status()) == "data.mat");
  }
  write_bytes(folder / "part.mat", bytes.substr(0, bytes.size() - 1));
  const absl::Status status = MatFile::open(folder / "part.mat").status();
  INFO(error_line(status));
  CHECK(error_line(status).find("the superblock gives an end at byte") != std::string::npos);
}

TEST_CASE("Forbidden contents of a file of version 7.3 are refused by name", "[io][mat]") {
  const test::TempDir folder;
  const std::string path = folder / "f.mat";
  make_file(folder / "other.mat", [&](hid_t file) { add_dataset(file, {}); });
  write_bytes(folder / "numbers", std::string(6, '\7'));
  struct Fault {
    std::string problem;
    std::function<void(hid_t)> fill;
  };
  const auto dataset = [](const DatasetOptions& options) { return [=](hid_t file) { add_dataset(file, options); }; };
  const auto deflated = [](hid_t p) { chunk(p, 3, 2), H5Pset_deflate(p, 5); };
  const std::vector<Fault> faults = {
      {"its data is in other files",
       dataset(
           {.properties = [&](hid_t p) { H5Pset_external(p, (folder / "numbers").c_str(), 0, 6); }, .write = false})},
      {"(got 'link'",
       [&](hid_t file) {
         H5Lcreate_external((folder / "other.mat").c_str(), "/x", file, "x", H5P_DEFAULT, H5P_DEFAULT);
       }},
      {"(got 'link'", [&](hid_t file) { H5Lcreate_soft("/nowhere", file, "x", H5P_DEFAULT, H5P_DEFAULT); }},
      {"virtual view of other datasets", dataset({.properties =
                                                      [&](hid_t p) {
                                                        const hsize_t sizes[] = {3, 2};
                                                        const hid_t space = H5Screate_simple(2, sizes, nullptr);
                                                        H5Pset_virtual(p, space, (folder / "other.mat").c_str(), "/x",
                                                                       space);
                                                        H5Sclose(space);
                                                      },
                                                  .write = false})},
      {"filter 3 of HDF5 is not read", dataset({.properties = [](hid_t p) { chunk(p, 3, 2), H5Pset_fletcher32(p); }})},
      {"another filter follows",
       dataset({.properties = [](hid_t p) { chunk(p, 3, 2), H5Pset_deflate(p, 5), H5Pset_shuffle(p); }})},
      {"a chunk of it is missing", dataset({.properties = deflated, .write = false})},
      {"needs 6 bytes of data, the file has 0", dataset({.write = false})},
      {"overflows", dataset({.sizes = {hsize_t{1} << 40, hsize_t{1} << 40},
                             .properties = [](hid_t p) { chunk(p, 1, 1); },
                             .write = false})},
      {"the limit is", dataset({.sizes = {1 << 20, 1 << 20}, .properties = deflated, .write = false})},
      {"chunks of more than",
       dataset(
           {.sizes = {1 << 15, 1 << 15}, .properties = [](hid_t p) { chunk(p, 1 << 15, 1 << 15); }, .write = false})},
      {"more than 1000000 chunks",
       dataset({.sizes = {2000, 2000}, .properties = [](hid_t p) { chunk(p, 1, 1); }, .write = false})},
      {"is empty", dataset({.sizes = {0, 3}, .write = false})},
      {"has 1 dimensions", dataset({.sizes = {6}})},
      {"its stored type does not match its class double", dataset({.class_name = "double"})},
      {"without a class of MATLAB", dataset({.class_name = ""})},
      {"(got 'char'", dataset({.type = H5T_STD_U16LE, .class_name = "char"})},
      {"(got 'struct'", [](hid_t file) { H5Gclose(H5Gcreate2(file, "x", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)); }},
      {"no such variable", [](hid_t) {}},
  };
  for (const Fault& fault : faults) {
    make_file(path, fault.fill);
    const absl::Status status = read_x(path);
    INFO(fault.problem << ": " << error_line(status));
    CHECK(id_of(status) == "data.mat");
    CHECK(exit_code(status) == ExitCode::kData);
    CHECK(error_line(status).find(fault.problem) != std::string::npos);
    CHECK(error_line(status).find(path) != std::string::npos);
  }
}

TEST_CASE("A false superblock is refused", "[io][mat]") {
  const test::TempDir folder;
  make_file(folder / "f.mat", [](hid_t file) { add_dataset(file, {}); });
  const std::string bytes = read_bytes(folder / "f.mat");
  const auto number = [](uint64_t value) { return test::MatBytes().number(value); };
  const std::vector<std::tuple<size_t, std::string, std::string>> faults = {
      {8, "\x09", "superblock of version 9"},
      {13, "\x04", "addresses are not of 8 bytes"},
      {24, number(0), "gives a base address of 0"},
      {40, number(bytes.size() + 1), "the superblock gives an end at byte"},
      {40, number(~uint64_t{0}), "the superblock gives an end at byte"},
      {48, number(96), "requires a driver"},
      {0, "\x88", "no HDF5 at byte 512"},
  };
  for (const auto& [at, value, problem] : faults) {
    std::string changed = bytes;
    changed.replace(512 + at, value.size(), value);
    write_bytes(folder / "bad.mat", changed);
    const absl::Status status = MatFile::open(folder / "bad.mat").status();
    INFO(problem << ": " << error_line(status));
    CHECK(error_line(status).find(problem) != std::string::npos);
    CHECK(error_line(status).find("bad.mat@0x200") != std::string::npos);
  }
}

TEST_CASE("A chunk that inflates beyond its size is refused before HDF5 inflates it", "[io][mat]") {
  const test::TempDir folder;
  const std::string path = folder / "f.mat";
  make_file(path, [](hid_t file) {
    add_dataset(file, {.properties = [](hid_t p) { chunk(p, 3, 2), H5Pset_deflate(p, 5); }});
    const std::string bomb = test::MatBytes::deflated(std::string(64 << 20, '\0'));
    const hid_t dataset = H5Dopen2(file, "x", H5P_DEFAULT);
    const hsize_t origin[] = {0, 0};
    REQUIRE(H5Dwrite_chunk(dataset, H5P_DEFAULT, 0, origin, bomb.size(), bomb.data()) >= 0);
    H5Dclose(dataset);
  });
  const absl::Status status = read_x(path);
  INFO(error_line(status));
  CHECK(error_line(status).find("the compressed data continues after the variable") != std::string::npos);
}

TEST_CASE("A chunk shorter than its dataset needs is refused, even if no filter is declared", "[io][mat]") {
  const test::TempDir folder;
  const std::string path = folder / "f.mat";
  REQUIRE(test::write_mat73(path, Variables{{"x", at::ones({3, 4}, at::kByte)}}).ok());
  std::string bytes = read_bytes(path);
  const size_t kind = bytes.find("deflate") - 24;  // of the object header message that lists the filters
  REQUIRE(bytes[kind] == 0x0b);
  bytes[kind] = 0;  // none: HDF5 would copy a chunk's bytes from memory of the compressed size
  write_bytes(path, bytes);
  const auto tensor = MatFile::open(path).value().read("x");
  CHECK(id_of(tensor.status()) == "data.mat");
  CHECK(std::string(tensor.status().message()).find("are needed") != std::string::npos);
}

TEST_CASE("An address near the maximum is refused", "[io][mat]") {
  const test::TempDir folder;
  const std::string path = folder / "f.mat";
  REQUIRE(test::write_mat73(path, Variables{{"x", at::ones({3, 4}, at::kByte)}}).ok());
  const std::string whole = read_bytes(path);
  // Changes in turn every eight bytes of the first kilobytes that may be an address; the symbol table is there.
  for (size_t at = 512; at + 8 <= std::min<size_t>(whole.size(), 2560); at += 8) {
    std::string bytes = whole;
    bytes.replace(at, 7, std::string(7, '\xff'));
    write_bytes(path, bytes);
    const auto file = MatFile::open(path);  // terminated the process with HDF5's own driver
    if (file.ok() && !file->variables().empty()) (void)file->read(file->variables()[0].name);
  }
}
