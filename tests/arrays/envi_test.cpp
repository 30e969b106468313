#include "arrays/files/envi.h"

#include <filesystem>

#include "arrays/mat_bytes.h"
#include "test_util.h"
#include "trainkit/arrays/array_file.h"

using namespace trainkit;
using test::id_of;
using test::MatBytes;
using test::write_bytes;

namespace {

std::string header(const std::string& interleave, int type, int order, int offset = 0) {
  return "ENVI\ndescription = {\n  made by a test,\n  samples = 99 }\nSamples = 3\nlines = 2\nbands = 4\nheader offset "
         "= " +
         std::to_string(offset) + "\nfile type = ENVI Standard\ndata type = " + std::to_string(type) +
         "\ninterleave = " + interleave + "\nbyte order = " + std::to_string(order) +
         "\n; a comment = 1\nwavelength = {1, 2,\n 3, 4}\n";
}

}  // namespace

TEST_CASE("Every interleave, byte order and offset gives the same cube", "[io][envi]") {
  const test::TempDir folder;
  const at::Tensor cube = torch::arange(24, torch::kShort).view({2, 3, 4}) * 300;
  for (const std::string interleave : {"bsq", "bil", "BIP"}) {
    const at::Tensor stored = (interleave == "bsq"   ? cube.permute({2, 0, 1})
                               : interleave == "bil" ? cube.permute({0, 2, 1})
                                                     : cube)
                                  .contiguous();
    const std::vector<int16_t> numbers(stored.data_ptr<int16_t>(), stored.data_ptr<int16_t>() + 24);
    for (const int order : {0, 1}) {
      CAPTURE(interleave, order);
      write_bytes(folder / "s.hdr", header(interleave, 2, order, 5));
      write_bytes(folder / "s.img", "12345" + MatBytes(order == 1).numbers(numbers));
      for (const std::string& name : {folder / "s.hdr", folder / "s.img"}) {
        const auto read = read_envi(name);
        REQUIRE(read.status() == absl::OkStatus());
        CHECK(read->is_contiguous());
        CHECK(at::equal(*read, cube));
      }
    }
  }
}

TEST_CASE("Every data type is read as its dtype", "[io][envi]") {
  const test::TempDir folder;
  const std::vector<std::pair<int, at::ScalarType>> types = {{1, at::kByte},    {2, at::kShort},  {3, at::kInt},
                                                             {4, at::kFloat},   {5, at::kDouble}, {12, at::kUInt16},
                                                             {13, at::kUInt32}, {14, at::kLong},  {15, at::kUInt64}};
  for (const auto& [number, type] : types) {
    const at::Tensor cube = torch::arange(24).view({2, 3, 4}).to(type);
    write_bytes(folder / "s.hdr", header("bip", number, 0));
    write_bytes(folder / "s", std::string(static_cast<const char*>(cube.data_ptr()), cube.nbytes()));
    const auto read = read_envi(folder / "s.hdr");
    CAPTURE(number);
    REQUIRE(read.status() == absl::OkStatus());
    CHECK(read->scalar_type() == type);
    CHECK(at::equal(read->to(at::kDouble), cube.to(at::kDouble)));
  }
}

TEST_CASE("Every prefix of the header or the data is refused or gives the same cube", "[io][envi]") {
  const test::TempDir folder;
  const std::string text = header("bip", 1, 0), data(24, '\5');
  write_bytes(folder / "s.img", data);
  for (size_t length = 0; length < text.size(); ++length) {
    CAPTURE(length);
    write_bytes(folder / "s.hdr", text.substr(0, length));
    const auto read = read_envi(folder / "s.hdr");
    if (read.ok()) {
      REQUIRE(read->sizes() == at::IntArrayRef{2, 3, 4});
    } else {
      REQUIRE(id_of(read.status()) == "data.envi");
    }
  }
  write_bytes(folder / "s.hdr", text);
  for (size_t length = 0; length < data.size(); ++length) {
    write_bytes(folder / "s.img", data.substr(0, length));
    REQUIRE(id_of(read_envi(folder / "s.hdr").status()) == "data.envi");
  }
}

TEST_CASE("A bad pair is refused with the header's line", "[io][envi]") {
  const test::TempDir folder;
  const std::string good = header("bsq", 1, 0);
  const auto without = [&](const std::string& line) {
    std::string text = good;
    const size_t at = text.find(line);
    return text.erase(at, text.find('\n', at) - at + 1);
  };
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  const std::vector<std::pair<std::string, std::string>> faults = {
      {"", "s.hdr: the file is empty"},
      {"PNG\n", "s.hdr:1: not an ENVI header"},
      {without("Samples"), "samples: is missing"},
      {without("interleave"), "interleave: is missing"},
      {with("lines = 2", "lines = 0"), "s.hdr:6: lines: not a number in range (got '0'"},
      {with("lines = 2", "lines = -2"), "s.hdr:6: lines: not a number in range"},
      {with("lines = 2", "lines = 2.5"), "s.hdr:6: lines: not a number in range"},
      {with("bands = 4", "bands = 99999999999999999999"), "s.hdr:7: bands: not a number in range"},
      {with("data type = 1", "data type = 6"), "s.hdr:10: data type: not supported (got '6'"},
      {with("interleave = bsq", "interleave = bsx"), "s.hdr:11: interleave: not known"},
      {with("byte order = 0", "byte order = 2"), "s.hdr:12: byte order: not a number in range"},
      {good + "LINES = 3\n", "s.hdr:16: lines: is a duplicate"},
      {good + "names = {a,\nb", "s.hdr:16: names: the brace is not closed"},
      {with("lines = 2", "lines = 2147483648"), "shorter than its header says"},
      {with("bands = 4", "bands = 3"), "longer than its header says"},
      {with("header offset = 0", "header offset = 1"), "shorter than its header says"},
  };
  write_bytes(folder / "s.dat", std::string(24, '\1'));
  for (const auto& [text, problem] : faults) {
    write_bytes(folder / "s.hdr", text);
    const absl::Status status = read_envi(folder / "s.hdr").status();
    INFO(problem << " / " << error_line(status));
    CHECK(id_of(status) == "data.envi");
    CHECK(error_line(status).find(problem) != std::string::npos);
  }
  write_bytes(folder / "s.hdr", good);
  write_bytes(folder / "s.img", std::string(24, '\1'));
  CHECK(error_line(read_envi(folder / "s.hdr").status()).find("more than one possible data file") != std::string::npos);
  CHECK(read_envi(folder / "s.dat").ok());
  write_bytes(folder / "alone.hdr", good);
  CHECK(error_line(read_envi(folder / "alone.hdr").status()).find("no data file next to it") != std::string::npos);
  CHECK(error_line(read_envi(folder / "none.img").status()).find("no header next to it") != std::string::npos);
}

TEST_CASE("The wavelengths of a header are one number for each band", "[io][envi]") {
  const test::TempDir folder;
  const auto read_with = [&](const std::string& line) {
    std::string text = header("bip", 1, 0);
    text.replace(text.find("wavelength"), text.npos, line);
    write_bytes(folder / "s.hdr", text);
    write_bytes(folder / "s.img", std::string(24, 'x'));
    return trainkit::detail::read_envi_wavelengths(folder / "s.hdr");
  };
  CHECK(read_with("wavelength = {400.5, 5e2,\n 600,700 }\n").value() == std::vector<double>{400.5, 500, 600, 700});
  CHECK(read_with("").value().empty());
  for (const char* bad : {"wavelength = {1, 2, 3}\n", "wavelength = {1, 2, 3, x}\n", "wavelength = {1, 2, 3, nan}\n",
                          "wavelength = \n", "wavelength = {1, 2, 3, 4\n"}) {
    INFO(bad);
    CHECK(id_of(read_with(bad).status()) == "data.envi");
  }
}
