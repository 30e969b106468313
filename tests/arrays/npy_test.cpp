#include <filesystem>

#include "arrays/mat_bytes.h"
#include "test_util.h"
#include "trainkit/arrays/array_file.h"

using namespace trainkit;
using test::id_of;
using test::read_bytes;
using test::write_bytes;

namespace {

std::string npy(const std::string& header, const std::string& data) {
  std::string text = header;
  text.resize((text.size() + 10 + 63) / 64 * 64 - 11, ' ');
  text += '\n';
  return "\x93NUMPY" + std::string({1, 0, static_cast<char>(text.size()), static_cast<char>(text.size() >> 8)}) + text +
         data;
}

}  // namespace

TEST_CASE("Arrays of every dtype are read back unchanged", "[io][npy]") {
  const test::TempDir folder;
  for (const auto type : {at::kBool, at::kByte, at::kChar, at::kShort, at::kUInt16, at::kInt, at::kUInt32, at::kLong,
                          at::kUInt64, at::kHalf, at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble}) {
    const at::Tensor tensor = torch::randint(0, 2, {3, 4, 5}).to(type);
    CAPTURE(c10::toString(type));
    REQUIRE(write_npy(folder / "f.npy", tensor.permute({2, 0, 1})).ok());
    const auto back = read_npy(folder / "f.npy");
    REQUIRE(back.status() == absl::OkStatus());
    CHECK(back->scalar_type() == type);
    CHECK(at::equal(back->to(at::kComplexDouble), tensor.permute({2, 0, 1}).to(at::kComplexDouble)));
  }
  for (const at::Tensor& tensor : {torch::tensor(7), torch::empty({0, 3}), torch::arange(4)}) {
    REQUIRE(write_npy(folder / "f.npy", tensor).ok());
    CHECK(at::equal(read_npy(folder / "f.npy").value(), tensor));
  }
  CHECK(absl::IsInvalidArgument(write_npy(folder / "f.npy", torch::ones({2}).to(at::kBFloat16))));
}

TEST_CASE("A conjugate or negated view is written with its values", "[io][npy]") {
  const test::TempDir folder;
  const at::Tensor z = torch::complex(torch::ones({2}), torch::full({2}, 3.0)).conj();
  for (const at::Tensor& tensor : {z, at::imag(z), at::_neg_view(torch::arange(3.))}) {
    REQUIRE((tensor.is_conj() || tensor.is_neg()));
    REQUIRE(write_npy(folder / "f.npy", tensor).ok());
    CHECK(at::equal(read_npy(folder / "f.npy").value(), tensor));
  }
}

TEST_CASE("The header has the length of NumPy's for every shape", "[io][npy]") {
  const test::TempDir folder;
  const auto data_offset = [&](const std::vector<int64_t>& shape) {
    REQUIRE(write_npy(folder / "f.npy", torch::zeros(shape, torch::kByte)).ok());
    REQUIRE(at::equal(read_npy(folder / "f.npy").value(), torch::zeros(shape, torch::kByte)));
    return read_bytes(folder / "f.npy").find('\n') + 1;
  };
  // Lengths of numpy.save in NumPy 2.4.
  CHECK(data_offset({}) == 128);
  CHECK(data_offset({100000}) == 128);
  CHECK(data_offset(std::vector<int64_t>(14, 1)) == 128);
  CHECK(data_offset(std::vector<int64_t>(15, 1)) == 192);
  std::vector<int64_t> full(14, 1);  // the text ends at a multiple of 64
  full[1] = 100;
  CHECK(data_offset(full) == 192);
  full[0] = 100000;
  CHECK(data_offset(full) == 192);
}

TEST_CASE("An array in Fortran order is read with the right elements", "[io][npy]") {
  const test::TempDir folder;
  write_bytes(folder / "f.npy", npy("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }", "\1\2\3\4\5\6"));
  CHECK(at::equal(read_npy(folder / "f.npy").value(), torch::tensor({{1, 3, 5}, {2, 4, 6}}, torch::kByte)));
}

TEST_CASE("Every byte of a bool array except 0 reads as true", "[io][npy]") {
  const test::TempDir folder;
  write_bytes(folder / "f.npy",
              npy("{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }", std::string("\0\1\2", 3)));
  CHECK(at::equal(read_npy(folder / "f.npy")->view(torch::kByte), torch::tensor({0, 1, 1}, torch::kByte)));
}

TEST_CASE("Every prefix of a NumPy file is refused", "[io][npy]") {
  const test::TempDir folder;
  REQUIRE(write_npy(folder / "f.npy", torch::arange(6)).ok());
  const std::string bytes = read_bytes(folder / "f.npy");
  for (size_t length = 0; length < bytes.size(); ++length) {
    CAPTURE(length);
    write_bytes(folder / "part.npy", bytes.substr(0, length));
    REQUIRE(id_of(read_npy(folder / "part.npy").status()) == "data.npy");
  }
}

TEST_CASE("A NumPy file that cannot be read gives the reason", "[io][npy]") {
  const test::TempDir folder;
  const std::vector<std::pair<std::string, std::string>> faults = {
      {npy("{'descr': '>i4', 'fortran_order': False, 'shape': (1,), }", "1234"), "little-endian"},
      {npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "12345678"), "not supported"},
      {npy("{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", "12345678"),
       "fits 64 bits"},
      {npy("{'descr': '<f8', 'fortran_order': False, 'shape': (0, 1099511627776, 1099511627776), }", ""),
       "empty array do not fit 64 bits"},
      {npy("{'descr': '<f8', 'fortran_order': True, 'shape': (1099511627776, 0, 1099511627776), }", ""),
       "empty array do not fit 64 bits"},
      {npy("{'descr': '<f8', 'fortran_order': True, 'shape': (3,), }", "12345678"), "expected 24 bytes"},
      {"PK\3\4 and more of an archive", "not a NumPy file"},
  };
  for (const auto& [bytes, problem] : faults) {
    write_bytes(folder / "f.npy", bytes);
    const absl::Status status = read_npy(folder / "f.npy").status();
    INFO(problem << ": " << error_line(status));
    CHECK(id_of(status) == "data.npy");
    CHECK(error_line(status).find(problem) != std::string::npos);
  }
}

TEST_CASE("An array that is written in pieces has the bytes of a whole one", "[io][npy]") {
  const test::TempDir folder;
  const at::Tensor array = torch::rand({6, 5, 2});
  REQUIRE(write_npy(folder / "whole.npy", array).ok());
  const auto in_pieces = [&](const AppendElements& append) {
    for (const at::Tensor& piece : array.view({-1}).split(7)) {
      if (const absl::Status status = append(piece); !status.ok()) return status;
    }
    return absl::OkStatus();
  };
  REQUIRE(write_npy(folder / "pieces.npy", at::kFloat, {6, 5, 2}, in_pieces).ok());
  CHECK(test::read_bytes(folder / "pieces.npy") == test::read_bytes(folder / "whole.npy"));
  const test::TempDir empty;
  CHECK_THROWS_AS(write_npy(empty / "f.npy", at::kFloat, {6, 5, 3}, in_pieces), c10::ValueError);
  CHECK_THROWS_AS(write_npy(empty / "f.npy", at::kDouble, {6, 5, 2}, in_pieces), c10::ValueError);
  CHECK(std::filesystem::is_empty(empty.path()));
}
