#include "trainkit/io/safetensors.h"

#include <algorithm>
#include <cstring>

#include "io/weights/safetensors_bytes.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("Tensors of every dtype are read back unchanged", "[io][safetensors]") {
  test::TempDir dir;
  const std::string path = dir / "m.safetensors";
  NamedTensors written = {
      {"flag", torch::tensor({true, false, true})}, {"none", torch::empty({0, 7})}, {"scalar", torch::tensor(1.5)}};
  for (const auto type : {torch::kByte, torch::kChar, torch::kShort, torch::kInt, torch::kLong, torch::kHalf,
                          torch::kBFloat16, torch::kFloat, torch::kDouble, torch::kComplexFloat, torch::kUInt16,
                          torch::kUInt32, torch::kUInt64, torch::kFloat8_e4m3fn, torch::kFloat8_e5m2}) {
    written.emplace_back(c10::toString(type), torch::randint(0, 100, {3, 5}).to(type));
  }
  REQUIRE(save_safetensors(Fs::posix(), path, written, {{"format", "pt"}}) == absl::OkStatus());
  const auto file = SafetensorsFile::open(path).value();
  CHECK(file.metadata() == SafetensorsMetadata{{"format", "pt"}});
  CHECK(file.entries().size() == written.size());
  CHECK(file.names().size() == written.size());
  for (const auto& [name, tensor] : written) {
    CAPTURE(name);
    const at::Tensor read = file.tensor(name).value();
    CHECK(read.dtype() == tensor.dtype());
    CHECK(read.is_contiguous());
    CHECK(reinterpret_cast<uintptr_t>(read.data_ptr()) % 16 == 0);
    CHECK(read.sizes() == tensor.sizes());
    CHECK((tensor.nbytes() == 0 || std::memcmp(read.data_ptr(), tensor.data_ptr(), tensor.nbytes()) == 0));
  }
  CHECK(file.tensors()->size() == written.size());
}

TEST_CASE("NaN, infinities and negative zero keep their bits", "[io][safetensors]") {
  test::TempDir dir;
  const at::Tensor tensor = torch::tensor({NAN, -NAN, INFINITY, -INFINITY, -0.0f, 1e-45f});
  REQUIRE(save_safetensors(Fs::posix(), dir / "f", {{"t", tensor}}).ok());
  const at::Tensor read = SafetensorsFile::open(dir / "f")->tensor("t").value();
  CHECK(std::memcmp(read.data_ptr(), tensor.data_ptr(), tensor.nbytes()) == 0);
}

TEST_CASE("Views are written with the elements they show", "[io][safetensors]") {
  test::TempDir dir;
  const at::Tensor base = torch::arange(24.).view({4, 6});
  const NamedTensors views = {{"turned", base.t()},
                              {"strided", base.slice(1, 0, 6, 2)},
                              {"expanded", torch::ones({1}).expand({5})},
                              {"needs_grad", torch::ones({2}).requires_grad_()},
                              {"conj", torch::randn({3}, torch::kComplexFloat).conj()}};
  REQUIRE(save_safetensors(Fs::posix(), dir / "f", views).ok());
  const auto file = SafetensorsFile::open(dir / "f").value();
  for (const auto& [name, tensor] : views) {
    CAPTURE(name);
    CHECK(torch::equal(file.tensor(name).value(), tensor.detach()));
    CHECK_FALSE(file.tensor(name)->requires_grad());
  }
}

TEST_CASE("The bytes of a file do not depend on the order of the tensors", "[io][safetensors]") {
  test::TempDir dir;
  NamedTensors tensors = {
      {"b", torch::ones({3})}, {"a", torch::zeros({2}, torch::kByte)}, {"c", torch::ones({1}, torch::kDouble)}};
  REQUIRE(save_safetensors(Fs::posix(), dir / "1", tensors).ok());
  std::reverse(tensors.begin(), tensors.end());
  REQUIRE(save_safetensors(Fs::posix(), dir / "2", tensors).ok());
  CHECK(read_bytes(dir / "1") == read_bytes(dir / "2"));
  CHECK(static_cast<int64_t>(read_bytes(dir / "1").size()) == safetensors_bytes(tensors).value());
  CHECK(SafetensorsFile::open(dir / "1")->names() == std::vector<std::string>{"c", "b", "a"});
}

TEST_CASE("A tensor that cannot be written is reported by name, and the previous file stays", "[io][safetensors]") {
  test::TempDir dir;
  REQUIRE(save_safetensors(Fs::posix(), dir / "f", {{"a", torch::ones({2})}}).ok());
  const std::string before = read_bytes(dir / "f");
  const struct {
    const char* field;
    NamedTensors tensors;
  } rows[] = {{"a\tb", {{"a\tb", torch::ones({2})}}},
              {"a\x7f", {{"a\x7f", torch::ones({2})}}},
              {"x", {{"x", torch::ones(std::vector<int64_t>(65, 1))}}},
              {"x", {{"x", at::Tensor()}}},
              {"x", {{"x", torch::ones({2}, torch::kMeta)}}},
              {"x", {{"x", torch::eye(2).to_sparse()}}},
              {"x", {{"x", torch::ones({2}, torch::kComplexDouble)}}},
              {"x", {{"x", torch::ones({2})}, {"y", torch::ones({2})}, {"x", torch::ones({2})}}},
              {"__metadata__", {{"__metadata__", torch::ones({2})}}},
              {"names and metadata", {{"\xff", torch::ones({2})}}}};
  for (const auto& row : rows) {
    const absl::Status status = save_safetensors(Fs::posix(), dir / "f", row.tensors);
    CAPTURE(status.ToString());
    CHECK(absl::IsInvalidArgument(status));
    CHECK(error_of(status)->field == row.field);
    CHECK(read_bytes(dir / "f") == before);
  }
  const std::string name(65'536, 'n');
  CHECK(error_of(save_safetensors(Fs::posix(), dir / "f", {{name, torch::ones({2})}}))->problem == "name is too long");
  CHECK(error_of(safetensors_bytes({{name, torch::ones({2})}}).status())->id == "weights.write");
  CHECK(read_bytes(dir / "f") == before);
  CHECK(Fs::posix().open_directory(dir.path())->list()->size() == 1);
}

TEST_CASE("Names at the limits of the reader are written and read", "[io][safetensors]") {
  test::TempDir dir;
  const NamedTensors tensors = {{"", torch::ones({2})},
                                {" ", torch::ones({2})},
                                {"a\"b\\c", torch::ones({2})},
                                {std::string(65'535, 'n'), torch::ones({2})},
                                {"deep", torch::ones(std::vector<int64_t>(64, 1))}};
  REQUIRE(save_safetensors(Fs::posix(), dir / "f", tensors, {{"k\n", "v\t"}}) == absl::OkStatus());
  const auto file = SafetensorsFile::open(dir / "f");
  REQUIRE(file.status() == absl::OkStatus());
  for (const auto& [name, tensor] : tensors) CHECK(torch::equal(file->tensor(name).value(), tensor));
}

TEST_CASE("Unusual headers that the format permits are accepted", "[io][safetensors]") {
  test::TempDir dir;
  const std::string rows[] = {
      file_of("{}"),
      file_of("{}   \n"),
      file_of(R"({"__metadata__":null})"),
      file_of(object(member("", "F32", "[]", "[0,4]")), 4),
      file_of(object(member("a", "F64", "[0,9223372036854775807]", "[0,0]"))),
      file_of(object(join({member("b", "U8", "[1]", "[4,5]"), ",", member("a", "F32", "[1]", "[0,4]")})), 5),
      file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"extra":{"shape":[2],"x":[null]}}})", 1),
  };
  for (const auto& bytes : rows) {
    write_bytes(dir / "f", bytes);
    CAPTURE(bytes);
    const auto file = SafetensorsFile::open(dir / "f");
    REQUIRE(file.status() == absl::OkStatus());
    CHECK(file->tensors().status() == absl::OkStatus());
  }
}

TEST_CASE("Data at an unaligned address is copied to an aligned tensor", "[io][safetensors]") {
  test::TempDir dir;
  const std::string header = object(join({member("a", "U8", "[1]", "[0,1]"), ",", member("b", "F64", "[1]", "[1,9]")}));
  const double value = 2.5;
  std::string bytes = file_of(header, 1);
  bytes.append(reinterpret_cast<const char*>(&value), 8);
  write_bytes(dir / "f", bytes);
  const at::Tensor b = SafetensorsFile::open(dir / "f")->tensor("b").value();
  CHECK(b.item<double>() == 2.5);
  CHECK(reinterpret_cast<uintptr_t>(b.data_ptr()) % 16 == 0);
}

TEST_CASE("A boolean with any bit set is true", "[io][safetensors]") {
  test::TempDir dir;
  write_bytes(dir / "f", file_of(object(member("a", "BOOL", "[2]", "[0,2]"))) + std::string("\0\x82", 2));
  const at::Tensor a = SafetensorsFile::open(dir / "f")->tensor("a").value();
  CHECK(torch::equal(a, torch::tensor({false, true})));
  CHECK(torch::equal(a.to(torch::kByte), torch::tensor({0, 1}, torch::kByte)));
}

TEST_CASE("A dtype that LibTorch lacks can be listed but not read", "[io][safetensors]") {
  test::TempDir dir;
  write_bytes(dir / "f", file_of(object(member("a", "F4", "[2]", "[0,1]")), 1));
  const auto file = SafetensorsFile::open(dir / "f").value();
  CHECK(file.entries().at(0).dtype == "F4");
  const absl::Status status = file.tensor("a").status();
  CHECK(absl::IsUnimplemented(status));
  CHECK(exit_code(status) == ExitCode::kWeights);
}

TEST_CASE("An empty tensor with sizes beyond LibTorch's limit can be listed but not read", "[io][safetensors]") {
  test::TempDir dir;
  write_bytes(dir / "f", file_of(object(member("a", "F32", "[0,1099511627776,1099511627776]", "[0,0]")), 0));
  const auto file = SafetensorsFile::open(dir / "f").value();  // as the reference does
  CHECK(file.entries().at(0).shape.at(2) == int64_t{1} << 40);
  const absl::Status status = file.tensor("a").status();
  CHECK(absl::IsUnimplemented(status));
  CHECK(exit_code(status) == ExitCode::kWeights);
}

TEST_CASE("A missing name suggests the nearest", "[io][safetensors]") {
  test::TempDir dir;
  REQUIRE(save_safetensors(Fs::posix(), dir / "f", {{"fc.weight", torch::ones({2})}}).ok());
  const auto file = SafetensorsFile::open(dir / "f").value();
  CHECK(file.contains("fc.weight"));
  CHECK_FALSE(file.contains("fc.wieght"));
  const absl::Status status = file.tensor("fc.wieght").status();
  CHECK(absl::IsNotFound(status));
  CHECK(error_of(status)->hint == "did you mean 'fc.weight'?");
}

TEST_CASE("copy_named_tensors copies by name and converts between floating-point dtypes", "[io][safetensors]") {
  const at::Tensor a = torch::zeros({2}).requires_grad_(), b = torch::zeros({3}, torch::kHalf);
  REQUIRE(copy_named_tensors({{"b", torch::full({3}, 2.)}, {"a", torch::full({2}, 1., torch::kDouble)}},
                             {{"a", a}, {"b", b}}, "f")
              .ok());
  CHECK(torch::equal(a.detach(), torch::ones({2})));
  CHECK(torch::equal(b, torch::full({3}, 2., torch::kHalf)));
}

TEST_CASE("copy_named_tensors reports all mismatches by name and copies nothing", "[io][safetensors]") {
  const at::Tensor a = torch::zeros({2}), b = torch::zeros({3}), c = torch::zeros({1}),
                   d = torch::zeros({4}, torch::kLong);
  const absl::Status status = copy_named_tensors(
      {{"a", torch::ones({2})}, {"b", torch::ones({4})}, {"d", torch::ones({4})}, {"extra", torch::ones({1})}},
      {{"a", a}, {"b", b}, {"c", c}, {"d", d}}, "m.safetensors");
  CHECK(exit_code(status) == ExitCode::kWeights);
  const std::string problem = error_of(status)->problem;
  CHECK(error_of(status)->where == "m.safetensors");
  CHECK(problem.find("1 missing (c)") != std::string::npos);
  CHECK(problem.find("1 unexpected (extra)") != std::string::npos);
  CHECK(problem.find("b: (4) in the file, (3) here") != std::string::npos);
  CHECK(problem.find("d: Float in the file, Long here") != std::string::npos);
  CHECK(torch::equal(a, torch::zeros({2})));

  NamedTensors many;
  for (int i = 0; i < 100; ++i) many.emplace_back(join({"t", std::to_string(i)}), torch::ones({1}));
  const std::string text = error_of(copy_named_tensors({}, many, "f"))->problem;
  CHECK(text.find("100 missing") != std::string::npos);
  CHECK_THAT(text, Catch::Contains("t4 and 95 more)") && !Catch::Contains("t5,"));
}
