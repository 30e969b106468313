#include "trainkit/arrays/mat.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "arrays/mat_bytes.h"
#include "matlab73/write_mat73.h"
#include "test_util.h"

using namespace trainkit;
using test::id_of;
using test::MatBytes;
using test::read_bytes;
using test::write_bytes;

namespace {

using Variables = std::vector<std::pair<std::string, at::Tensor>>;

/// Reads every variable of a file; OK if all could be read.
absl::Status read_all(const std::string& path) {
  const auto file = MatFile::open(path);
  if (!file.ok()) return file.status();
  if (file->variables().empty()) return file->read("x").status();
  for (const MatVariable& variable : file->variables()) {
    if (auto tensor = file->read(variable.name); !tensor.ok()) return tensor.status();
  }
  return absl::OkStatus();
}

/// Peak resident size so far, in KiB.
long peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stol(line.substr(6));
  }
  return 0;
}

}  // namespace

TEST_CASE("Arrays of every class are read back unchanged in both versions", "[io][mat]") {
  const test::TempDir folder;
  Variables variables = {{"flag", torch::tensor({true, false, true}).view({1, 3})},
                         {"row", torch::arange(5, torch::kDouble)},
                         {"cube", torch::arange(2 * 3 * 4, torch::kShort).view({2, 3, 4})},
                         {"four", torch::rand({2, 1, 3, 2})},
                         {"turned", torch::rand({3, 4}).t()},
                         {"negated", at::_neg_view(torch::rand({1, 2}))}};
  for (const auto type : {at::kByte, at::kChar, at::kShort, at::kUInt16, at::kInt, at::kUInt32, at::kLong, at::kUInt64,
                          at::kFloat, at::kDouble}) {
    variables.emplace_back(std::string("of_") + c10::toString(type), torch::randint(0, 100, {4, 5}).to(type));
  }
  for (const auto write : {write_mat, test::write_mat73}) {
    CAPTURE(write == write_mat);
    REQUIRE(write(folder / "f.mat", variables) == absl::OkStatus());
    const auto file = MatFile::open(folder / "f.mat");
    REQUIRE(file.status() == absl::OkStatus());
    REQUIRE(file->variables().size() == variables.size());
    for (const auto& [name, tensor] : variables) {
      CAPTURE(name);
      const auto back = file->read(name);
      REQUIRE(back.status() == absl::OkStatus());
      CHECK(back->scalar_type() == tensor.scalar_type());
      CHECK(back->is_contiguous());
      CHECK(at::equal(back->to(at::kDouble), (tensor.dim() == 1 ? tensor.view({1, -1}) : tensor).to(at::kDouble)));
    }
  }
}

TEST_CASE("An empty array of version 5 is read as an empty tensor", "[io][mat]") {
  const test::TempDir folder;
  const MatBytes m;
  const std::string array = m.array({.class_number = 6, .sizes = {0, 3}, .data_type = 9, .data = ""});
  for (const std::string& element : {array, m.compressed(array)}) {
    write_bytes(folder / "f.mat", m.header() + element);
    const auto back = MatFile::open(folder / "f.mat")->read("x");
    REQUIRE(back.status() == absl::OkStatus());
    CHECK(back->sizes() == at::IntArrayRef({0, 3}));
    CHECK(back->scalar_type() == at::kDouble);
  }
}

TEST_CASE("An integer beyond 2^53 keeps its last bit", "[io][mat]") {
  const test::TempDir folder;
  const at::Tensor large = torch::tensor({(int64_t{1} << 53) + 1, -(int64_t{1} << 62) - 1}).view({1, 2});
  for (const auto write : {write_mat, test::write_mat73}) {
    REQUIRE(write(folder / "f.mat", Variables{{"x", large}}).ok());
    CHECK(at::equal(MatFile::open(folder / "f.mat")->read("x").value(), large));
  }
}

TEST_CASE("Values that the format cannot store are not written", "[io][mat]") {
  const test::TempDir folder;
  const std::string path = folder / "f.mat";
  const at::Tensor one = torch::ones({1, 1});
  const std::vector<Variables> faults = {{{"", one}},
                                         {{"1x", one}},
                                         {{"a b", one}},
                                         {{"x/y", one}},
                                         {{"x", {}}},
                                         {{std::string(64, 'a'), one}},
                                         {{"x", one}, {"x", one}},
                                         {{"x", torch::empty({0, 3})}},
                                         {{"x", one.to(at::kHalf)}},
                                         {{"x", one.to(at::kComplexFloat)}}};
  for (const Variables& variables : faults) {
    CAPTURE(variables[0].first);
    CHECK(absl::IsInvalidArgument(write_mat(path, variables)));
  }
  CHECK(std::filesystem::is_empty(folder.path()));
  CHECK(exit_code(write_mat(folder / "no/f.mat", Variables{{"x", one}})) == ExitCode::kStorage);
}

TEST_CASE("A file of either byte order, compressed or not, is read", "[io][mat]") {
  const test::TempDir folder;
  for (const bool big_endian : {false, true}) {
    const MatBytes m(big_endian);
    // A double whose values are stored as miINT16, as MATLAB does.
    const std::string array = m.array({.class_number = 6,
                                       .sizes = {2, 2, 2},
                                       .name = "cube",
                                       .data_type = 3,
                                       .data = m.numbers<int16_t>({1, -2, 3, 4, 500, 6, 7, -800})});
    for (const bool compressed : {false, true}) {
      CAPTURE(big_endian, compressed);
      write_bytes(folder / "f.mat", m.header() + (compressed ? m.compressed(array) : array));
      const auto file = MatFile::open(folder / "f.mat");
      REQUIRE(file.status() == absl::OkStatus());
      CHECK(file->variables()[0].type == "double");
      CHECK(file->variables()[0].sizes == std::vector<int64_t>{2, 2, 2});
      const at::Tensor cube = file->read("cube").value();
      CHECK(at::equal(cube, torch::tensor({{{1., 500.}, {3., 7.}}, {{-2., 6.}, {4., -800.}}}, torch::kDouble)));
    }
  }
}

TEST_CASE("Every prefix of a file of version 5 gives the right data or a named error", "[io][mat]") {
  const test::TempDir folder;
  const MatBytes m;
  const std::string second = m.array({.class_number = 6,
                                      .sizes = {3, 1},
                                      .name = "longer_name",
                                      .data_type = 9,
                                      .data = m.numbers<double>({1.5, 2.5, 3.5})});
  REQUIRE(write_mat(folder / "ours.mat", Variables{{"x", torch::arange(6, torch::kByte).view({2, 3}) + 1},
                                                   {"y", torch::rand({4, 5}, torch::kDouble)}})
              .ok());
  for (const std::string& bytes :
       {m.header() + m.array() + second, m.header() + m.compressed(m.array()) + m.compressed(second),
        read_bytes(folder / "ours.mat")}) {
    const std::string path = folder / "whole.mat";
    write_bytes(path, bytes);
    const auto whole = MatFile::open(path).value();
    for (size_t length = 0; length < bytes.size(); ++length) {
      CAPTURE(length, bytes.size());
      write_bytes(folder / "part.mat", bytes.substr(0, length));
      const auto part = MatFile::open(folder / "part.mat");
      if (!part.ok()) {
        REQUIRE(id_of(part.status()) == "data.mat");
        continue;
      }
      REQUIRE(part->variables().size() < whole.variables().size());  // cut between two variables
      for (const MatVariable& variable : part->variables()) {
        REQUIRE(at::equal(part->read(variable.name).value(), whole.read(variable.name).value()));
      }
    }
  }
}

TEST_CASE("Every changed byte of a compressed file is detected or changes nothing", "[io][mat]") {
  const test::TempDir folder;
  const MatBytes m;
  const std::string bytes = m.header() + m.compressed(m.array());
  const at::Tensor whole = torch::tensor({{1, 3, 5}, {2, 4, 6}}, torch::kByte);
  int unchanged = 0;
  for (size_t at = 124; at < bytes.size(); ++at) {
    for (const int bit : {0, 3, 7}) {
      CAPTURE(at, bit);
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      write_bytes(folder / "f.mat", changed);
      const absl::Status status = read_all(folder / "f.mat");
      if (status.ok()) {  // zlib ignores a few bits before its checksum
        REQUIRE(at::equal(MatFile::open(folder / "f.mat")->read("x").value(), whole));
        ++unchanged;
        continue;
      }
      REQUIRE(id_of(status) == "data.mat");
      REQUIRE(exit_code(status) == ExitCode::kData);
    }
  }
  CHECK(unchanged <= 2);
}

TEST_CASE("Every changed byte of a plain file gives data or a named error", "[io][mat]") {
  const test::TempDir folder;
  const MatBytes m;
  const std::string bytes = m.header() + m.array() + m.array({.name = "y"});
  int refused = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      CAPTURE(at, flip);
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ flip);
      write_bytes(folder / "f.mat", changed);
      const absl::Status status = read_all(folder / "f.mat");
      if (status.ok()) continue;
      REQUIRE(id_of(status) == "data.mat");
      ++refused;
    }
  }
  CHECK(refused > 200);
}

TEST_CASE("A bad file is refused with its reason, its offset and its variable", "[io][mat]") {
  const test::TempDir folder;
  const MatBytes m;
  const std::string h = m.header();
  const auto one = [&](const MatBytes::Array& array) { return h + m.array(array); };
  const std::string whole = h + m.array();
  std::string nested(8, 'x');
  for (int i = 0; i < 10'000; ++i)
    nested = m.number(uint32_t{14}) + m.number(static_cast<uint32_t>(nested.size())) + nested;
  std::string bad_zlib = h + m.compressed(m.array()), bad_adler = bad_zlib, long_zlib = m.deflated(m.array()) + "more";
  bad_zlib[136] = '\x11';
  bad_adler.back() = static_cast<char>(bad_adler.back() ^ 1);
  struct Fault {
    std::string what, bytes, problem, where = "", field = "";
  };
  const std::vector<Fault> faults = {
      {"empty", "", "the file is empty"},
      {"short", h.substr(0, 127), "cut short"},
      {"text", std::string(4000, 'a'), "not a MATLAB file"},
      {"lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "not a MATLAB file"},
      {"endian mark", h.substr(0, 126) + "MM" + m.array(), "not a MATLAB file"},
      {"version 3", m.header(0x0300) + m.array(), "unknown version"},
      {"version 4", m.numbers<uint32_t>({0, 2, 3, 0, 2}) + std::string("x\0", 2) + std::string(300, '\1'),
       "version 5 or 7.3"},
      {"version 4, small", m.numbers<uint32_t>({0, 1, 1, 0, 2}) + std::string("x\0", 2) + std::string(8, '\0'),
       "version 5 or 7.3"},
      {"no HDF5", m.header(0x0200) + std::string(1000, '\0'), "no HDF5 at byte 512"},
      {"HDF5 without header", "\x89HDF\r\n\x1a\n" + std::string(1000, '\0'), "without the header that MATLAB writes"},
      {"none", h, "no such variable"},
      {"struct", one({.class_number = 2}), "not an array of real numbers", "", "'x'"},
      {"cell", one({.class_number = 1}), "not an array of real numbers", "", "'x'"},
      {"char", one({.class_number = 4, .data_type = 16}), "not an array of real numbers", "", "'x'"},
      {"sparse", one({.class_number = 5}), "not an array of real numbers", "", "'x'"},
      {"function", one({.class_number = 16}), "not an array of real numbers", "", "'x'"},
      {"opaque",
       h + m.element(14,
                     m.element(6, m.number(uint32_t{17}) + m.number(0u)) + m.element(1, "x") + m.element(1, "MCOS")),
       "not an array of real numbers", "", "'x'"},
      {"complex", one({.flags = 0x0800, .after = m.element(2, "\1\2\3\4\5\6")}), "not an array of real numbers", "",
       "'x'"},
      {"class 0", one({.class_number = 0}), "class 0 is not known", "@0x98"},
      {"class 18", one({.class_number = 18}), "class 18 is not known"},
      {"rank 0", one({.sizes = {}}), "has 0 dimensions"},
      {"rank 1", one({.sizes = {6}}), "has 1 dimensions"},
      {"rank 33", one({.sizes = std::vector<int32_t>(33, 1)}), "sizes of 132 bytes"},
      {"size 0", one({.sizes = {0, 3}}), "needs 0 bytes of data, the file has 6", "", "'x'"},
      {"size 0, overflow", one({.sizes = {0, 1 << 30, 1 << 30, 1 << 30}, .data = ""}), "overflows", "", "'x'"},
      {"size -1", one({.sizes = {-1, 3}}), "a size of -1"},
      {"overflow", one({.sizes = {1 << 30, 1 << 30, 1 << 30}}), "overflows", "", "'x'"},
      {"large", one({.sizes = {65536, 65536, 4}}), "more than version 5 and the limit allow", "", "'x'"},
      {"more than the file", one({.sizes = {2000, 300}}), "needs 600000 bytes of data, the file has 6", "", "'x'"},
      {"claim", one({.sizes = {2000, 300}, .claimed = 600'000}), "element claims 600000 bytes, 8 remain (truncated?)",
       "@0xc0", "'x'"},
      {"claim of a variable", h + m.element(14, m.inside({}), 2048),
       "element claims 2048 bytes, 64 remain (truncated?)", "@0x80"},
      {"claim of 4 GiB", h + m.element(14, m.inside({}), 0xffffffff), "element claims 4294967295 bytes", "@0x80"},
      {"not a multiple", one({.class_number = 11, .sizes = {1, 3}, .data_type = 4, .data = "12345"}),
       "needs 6 bytes of data, the file has 5"},
      {"data type", one({.data_type = 99}), "data of type 99 is not known", "", "'x'"},
      {"variable type", h + m.element(3, "12345678"), "element of type 3 is not a variable", "@0x80"},
      {"double in a uint8", one({.sizes = {1, 1}, .data_type = 9, .data = m.number(1.5)}),
       "an array of uint8 cannot hold miDOUBLE"},
      {"int8 in a uint8", one({.data_type = 1}), "an array of uint8 cannot hold miINT8"},
      {"uint8 in an int8", one({.class_number = 8}), "an array of int8 cannot hold miUINT8"},
      {"flags", h + m.element(14, m.element(5, m.numbers<int32_t>({2, 3}))), "the array flags are not"},
      {"sizes", h + m.element(14, m.element(6, m.numbers<uint32_t>({9, 0})) + m.element(1, "x")),
       "the sizes are not a list of miINT32"},
      {"name of numbers",
       h + m.element(14, m.element(6, m.numbers<uint32_t>({9, 0})) + m.element(5, m.numbers<int32_t>({2, 3})) +
                             m.element(9, "12345678")),
       "the name is not of miINT8"},
      {"name too long",
       h + m.element(14, m.element(6, m.numbers<uint32_t>({9, 0})) + m.element(5, m.numbers<int32_t>({2, 3})) +
                             m.element(1, "name", 60)),
       "element claims 60 bytes, 8 remain"},
      {"name of 5000", one({.name = std::string(5000, 'n')}), "name of 5000 bytes"},
      {"name with a zero", one({.name = std::string("a\0b", 3)}), "the name has a zero byte"},
      {"small element", h + m.element(14, m.number(uint32_t{5 << 16 | 6}) + m.number(1u)),
       "a small element of 5 bytes"},
      {"zlib header", bad_zlib, "the compressed data is damaged: ", "@0x80"},
      {"checksum", bad_adler, "the compressed data is damaged: incorrect data check", "@0x80", "'x'"},
      {"zlib trailer", h + m.number(uint32_t{15}) + m.number(static_cast<uint32_t>(long_zlib.size())) + long_zlib,
       "4 bytes follow the compressed data"},
      {"compressed twice", h + m.compressed(m.compressed(m.array())), "compressed data of type 15 is not an array"},
      {"two in one", h + m.compressed(m.array() + m.array()), "continues after the variable"},
      {"less than it says", h + m.compressed(m.array().substr(0, 40)), "ends before the variable"},
      {"same name", whole + m.array(), "duplicate variable name", "", "'x'"},
      {"trailing bytes", whole + "12345", "5 bytes, too few for a variable", "@0xc8"},
      {"trailing text", whole + "and some more text", "is not a variable", "@0xc8"},
      {"after the data", one({.after = "12345678"}), "8 bytes follow the data", "", "'x'"},
  };
  for (const Fault& fault : faults) {
    const std::string path = folder / "f.mat";
    write_bytes(path, fault.bytes);
    const absl::Status status = read_all(path);
    const std::string line = error_line(status);
    INFO(fault.what << ": " << line);
    CHECK(id_of(status) == "data.mat");
    CHECK(exit_code(status) == ExitCode::kData);
    CHECK(line.find(fault.problem) != line.npos);
    CHECK(line.find(path + fault.where) != line.npos);
    CHECK(line.find(fault.field) != line.npos);
    CHECK(line.size() <= 400);
  }
  write_bytes(folder / "cells.mat",
              h +
                  m.element(14, m.element(6, m.numbers<uint32_t>({1, 0})) + m.element(5, m.numbers<int32_t>({1, 1})) +
                                    m.element(1, "c") + nested) +
                  m.array());
  const auto cells = MatFile::open(folder / "cells.mat");
  REQUIRE(cells.status() == absl::OkStatus());  // nested elements are never read
  CHECK(cells->read("x").ok());
  CHECK(absl::IsUnimplemented(cells->read("c").status()));
  CHECK(id_of(MatFile::open(folder / "none.mat").status()) == "data.missing");
  CHECK(id_of(MatFile::open(folder.path().string()).status()) == "data.unreadable");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(id_of(MatFile::open(folder / "pipe").status()) == "data.unreadable");
}

TEST_CASE("A missing variable is reported with the available names", "[io][mat]") {
  const test::TempDir folder;
  const MatBytes m;
  std::string bytes = m.header();
  for (int i = 0; i < 12; ++i) bytes += m.array({.name = std::string(1, 'v').append(std::to_string(i))});
  write_bytes(folder / "f.mat", bytes);
  const absl::Status status = MatFile::open(folder / "f.mat")->read("v").status();
  CHECK(absl::IsNotFound(status));
  INFO(error_line(status));
  CHECK(error_line(status).find(
            "'v': no such variable (expected 'v0', 'v1', 'v2', 'v3', 'v4', 'v5', 'v6', 'v7' or one of 4 more)") !=
        std::string::npos);
}

TEST_CASE("A small file that would fill the memory is refused early", "[io][mat]") {
  const test::TempDir folder;
  const MatBytes m;
  /// The header of an array that claims `bytes` bytes of data; `zeros` of them exist.
  const auto make = [&](const std::string& name, std::vector<int32_t> sizes, uint32_t bytes, size_t zeros) {
    std::string head = m.array({.sizes = std::move(sizes), .data = "", .claimed = bytes});
    head.replace(4, 4, m.number(static_cast<uint32_t>(head.size() - 8 + bytes)));
    write_bytes(folder / name, m.header() + m.compressed_element(m.deflated(head, zeros)));
  };
  make("whole.mat", {256 << 10, 1 << 10}, 256 << 20, 256 << 20);
  make("claim.mat", {1 << 15, 1 << 15, 10}, uint32_t{10} << 28, 1 << 20);
  make("early.mat", {1 << 15, 1 << 15}, 1 << 30, 1 << 20);
  const long before = peak_memory();
  const auto problem = [&](const std::string& name) {
    const auto file =
        MatFile::open(folder / name, {.max_variable_bytes = name == "whole.mat" ? 100 << 20 : int64_t{4} << 30});
    REQUIRE(file.status() == absl::OkStatus());
    return error_line(file->read("x").status());
  };
  CHECK(problem("whole.mat").find("the limit is 104,857,600 bytes") != std::string::npos);
  CHECK(problem("claim.mat").find("more than version 5 and the limit allow") != std::string::npos);
  CHECK(problem("early.mat").find("the compressed data ends before the variable") != std::string::npos);
  CHECK(peak_memory() - before < 64 << 10);
  CHECK(MatFile::open(folder / "whole.mat")->read("x").value().count_nonzero().item<int64_t>() == 0);
}

TEST_CASE("A file that is replaced or truncated while it is open gives the old data or an error", "[io][mat]") {
  const test::TempDir folder;
  const std::string path = folder / "f.mat";
  const at::Tensor old = torch::rand({300, 400}, torch::kDouble);
  for (const auto write : {write_mat, test::write_mat73}) {
    REQUIRE(write(path, Variables{{"x", old}}).ok());
    const auto file = MatFile::open(path);
    REQUIRE(file.ok());
    REQUIRE(write(path, Variables{{"x", torch::zeros({2, 2})}}).ok());
    const auto read = file->read("x");  // HDF5 opens the name again
    CHECK((read.ok() ? at::equal(*read, old) : write == test::write_mat73 && id_of(read.status()) == "data.mat"));
    const auto cut = MatFile::open(path);
    REQUIRE(cut.ok());
    REQUIRE(::truncate(path.c_str(), 150) == 0);
    CHECK(id_of(cut->read("x").status()) == "data.damaged");
  }
}
