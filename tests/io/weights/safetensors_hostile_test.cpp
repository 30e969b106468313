// Broken or malicious safetensors files: each is refused with the location, in little memory.
#include <filesystem>
#include <functional>

#include "io/weights/safetensors_bytes.h"
#include "peak_memory.h"
#include "sanitizers.h"
#include "test_util.h"
#include "trainkit/io/safetensors.h"

using namespace trainkit;
using namespace trainkit::test;
namespace stdfs = std::filesystem;

TEST_CASE("A broken file is refused with the tensor and the offsets of the error", "[io][safetensors]") {
  const std::string one = member("a", "F32", "[1]", "[0,4]");
  const struct {
    const char* name;
    std::string bytes;
    const char* problem;
  } rows[] = {
      {"empty", "", "is too short for a safetensors file (got '0 bytes'"},
      {"7 bytes", std::string(7, '\0'), "is too short"},
      {"header of no bytes", little_endian<uint64_t>(0), "header: does not start with '{'"},
      {"header longer than the file", little_endian<uint64_t>(100) + "{}",
       "is cut short within its header (got '10 bytes', expected at least 108)"},
      {"header of 100,000,001 bytes", little_endian<uint64_t>(100'000'001) + "{}",
       "its header would be too long (got '100000001 bytes'"},
      {"header of 2^63 bytes", little_endian<uint64_t>(uint64_t{1} << 63) + "{}", "its header would be too long"},
      {"header of 2^64 - 1 bytes", little_endian<uint64_t>(~uint64_t{0}) + "{}", "its header would be too long"},
      {"no brace", file_of("abcd"), "does not start with '{' (got 'a')"},
      {"leading space", file_of(" {}"), "does not start with '{'"},
      {"byte order mark", file_of("\xef\xbb\xbf{}"), "does not start with '{'"},
      {"not JSON", file_of("{nope}"), "@0xa: header: is not valid JSON"},
      {"not UTF-8", file_of("{\"\xff\":{}}"), "is not valid JSON"},
      {"padding other than spaces", file_of("{}xx"), "is not valid JSON"},
      {"NUL after the header's end", file_of(std::string("{}\0}", 4)),
       "header: is not valid JSON: it holds a NUL byte"},
      {"root is a list", file_of("[]"), "does not start with '{'"},
      {"depth of 10,000",
       file_of(object(join({"\"a\":", object(join({"\"x\":", std::string(10'000, '['), std::string(10'000, ']')}))}))),
       "nested deeper than 16"},
      {"name twice", file_of(object(join({one, ",", one})), 4), "a: is a duplicate"},
      {"inner key twice", file_of(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4),
       "a: has its 'dtype' twice"},
      {"no dtype", file_of(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4), "a: has no dtype"},
      {"no shape", file_of(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4), "a: has no shape"},
      {"no offsets", file_of(R"({"a":{"dtype":"F32","shape":[1]}})", 4), "a: has no data_offsets"},
      {"unknown dtype", file_of(object(member("a", "F31", "[1]", "[0,4]")), 4), "a: dtype is unknown (got 'F31')"},
      {"lower-case dtype", file_of(object(member("a", "f32", "[1]", "[0,4]")), 4), "a: dtype is unknown (got 'f32')"},
      {"dtype is a number", file_of(R"({"a":{"dtype":32,"shape":[1],"data_offsets":[0,4]}})", 4),
       "a: dtype is of the wrong type (got 'a number')"},
      {"dimension -1", file_of(object(member("a", "F32", "[-1]", "[0,4]")), 4),
       "a: shape has an element that is not an integer"},
      {"dimension -0", file_of(object(member("a", "F32", "[-0]", "[0,0]"))),
       "a: shape has an element that is not an integer"},
      {"dimension 1.0", file_of(object(member("a", "F32", "[1.0]", "[0,4]")), 4),
       "a: shape has an element that is not an integer"},
      {"dimension '1'", file_of(object(member("a", "F32", "[\"1\"]", "[0,4]")), 4),
       "a: shape has an element that is not an integer"},
      {"dimension list", file_of(object(member("a", "F32", "[[1]]", "[0,4]")), 4),
       "a: shape has an element that is not an integer"},
      {"shape is a number", file_of(object(member("a", "F32", "1", "[0,4]")), 4), "a: shape is of the wrong type"},
      {"product of 2^64", file_of(object(member("a", "U8", "[4294967296,4294967296]", "[0,0]"))),
       "a: shape and dtype make no whole number of bytes below 2^64"},
      {"bytes past 2^64", file_of(object(member("a", "F64", "[4611686018427387904]", "[0,0]"))),
       "a: shape and dtype make no whole number"},
      {"dimension of 2^64 - 1", file_of(object(member("a", "U8", "[18446744073709551615,0]", "[0,0]"))),
       "a: shape and dtype make no whole number"},
      {"65 dimensions", file_of(object(member("a", "U8", join({"[1", repeat(",1", 64), "]"}), "[0,1]")), 1),
       "a: has too many dimensions (got '65'"},
      {"reversed offsets", file_of(object(member("a", "F32", "[1]", "[4,0]")), 4),
       "a: data_offsets are reversed (got '[4, 0]')"},
      {"negative offset", file_of(object(member("a", "F32", "[1]", "[-4,0]")), 4),
       "a: data_offsets has an element that is not an integer"},
      {"one offset", file_of(object(member("a", "F32", "[1]", "[0]")), 4), "a: data_offsets are not two numbers"},
      {"three offsets", file_of(object(member("a", "F32", "[1]", "[0,4,4]")), 4),
       "a: data_offsets are not two numbers"},
      {"past the end", file_of(object(member("a", "F32", "[2]", "[0,8]")), 4),
       "a: data_offsets are past the end of the file, which is cut short (got '[0, 8]', expected an end at most 4)"},
      {"overlap", file_of(object(join({one, ",", member("b", "F32", "[1]", "[2,6]")})), 6),
       "b: offsets overlap the tensor before (got '[2, 6]', expected a start at 4)"},
      {"hole", file_of(object(join({one, ",", member("b", "F32", "[1]", "[6,10]")})), 10),
       "b: offsets leave a hole (got '[6, 10]', expected a start at 4)"},
      {"hole at the start", file_of(object(member("a", "F32", "[1]", "[4,8]")), 8), "a: offsets leave a hole"},
      {"size is not the shape's", file_of(object(member("a", "F32", "[3]", "[0,4]")), 4),
       "a: data_offsets do not fit shape and dtype (got '[0, 4]', expected 12 bytes)"},
      {"trailing bytes", file_of(object(one), 5), "has bytes after the last tensor (got '1 bytes'"},
      {"one byte short", file_of(object(one), 3), "a: data_offsets are past the end"},
      {"metadata holds a number", file_of(R"({"__metadata__":{"a":1}})"),
       "__metadata__.a: is not a string (got 'a number')"},
      {"metadata holds an object", file_of(R"({"__metadata__":{"a":{}}})"),
       "__metadata__.a: is not a string (got 'an object')"},
      {"metadata is a list", file_of(R"({"__metadata__":[]})"), "__metadata__: is not an object (got 'a list')"},
      {"metadata twice", file_of(R"({"__metadata__":{},"__metadata__":{}})"), "__metadata__: is a duplicate"},
      {"metadata key twice", file_of(R"({"__metadata__":{"a":"","a":""}})"), "__metadata__.a: is a duplicate"},
      {"tensor is a list", file_of(R"({"a":["F32",[1],[0,4]]})", 4), "a: is not an object (got 'a list')"},
      {"tensor is null", file_of(R"({"a":null})"), "a: is not an object (got 'null')"},
      {"half a byte of F4", file_of(object(member("a", "F4", "[1]", "[0,0]"))),
       "a: shape and dtype make no whole number of bytes"},
      {"control bytes in a name", file_of(object(member("a\\u0000b", "F32", "[1]", "[0,4]")), 4),
       "name holds control characters"},
      {"name of 1 MB", file_of(object(member(std::string(1 << 20, 'n'), "F32", "[1]", "[0,4]")), 4),
       "name is too long"},
      {"pickle", std::string("\x80\x02}q\x00.", 6) + std::string(20, 'x'), "not a safetensors file"},
  };
  test::TempDir dir;
  const std::string path = dir / "m.safetensors";
  for (const auto& row : rows) {
    write_bytes(path, row.bytes);
    const auto file = SafetensorsFile::open(path);
    CAPTURE(row.name, file.status().ToString());
    REQUIRE_FALSE(file.ok());
    CHECK(exit_code(file.status()) == ExitCode::kWeights);
    const std::string line = error_line(file.status());
    CHECK(line.starts_with("error[weights.safetensors] "));
    CHECK(line.find("m.safetensors") != std::string::npos);
    CHECK(line.find(row.problem) != std::string::npos);
  }
}

TEST_CASE("A file that looks like another format gives a hint", "[io][safetensors]") {
  test::TempDir dir;
  const auto hint = [&](const std::string& bytes) {
    write_bytes(dir / "f", bytes);
    return error_of(SafetensorsFile::open(dir / "f").status())->hint;
  };
  CHECK(hint(std::string("PK\x03\x04", 4) + std::string(40, 'x')).find("torch.save") != std::string::npos);
  CHECK(hint(std::string("\x80\x02", 2) + std::string(40, 'x')).find("pickle") != std::string::npos);
  CHECK(hint("version https://git-lfs.github.com/spec/v1\n").find("git lfs pull") != std::string::npos);
  CHECK(hint(std::string(40, 'x')).empty());
}

TEST_CASE("A missing file, a folder, a link loop or a pipe is an error with exit code 5", "[io][safetensors]") {
  test::TempDir dir;
  stdfs::create_symlink(dir / "loop", dir / "loop");
  for (const std::string& path : {dir / "none", dir.path().string(), dir / "loop"}) {
    CAPTURE(path);
    const auto status = SafetensorsFile::open(path).status();
    CHECK(exit_code(status) == ExitCode::kWeights);
    CHECK(error_of(status)->where == path);
  }
}

TEST_CASE("A header made to fill the memory is refused within 256 MiB", "[io][safetensors]") {
  constexpr int64_t kLimit = test::kSanitized ? int64_t{4} << 30 : 256 << 20;
  constexpr size_t kLongest = 100'000'000;
  const auto full_of = [](std::string_view begin, const std::string& piece, std::string_view end) {
    std::string text(begin);
    text.reserve(kLongest);
    const std::string many = repeat(piece, 1000);  // tests are not optimized: few long appends
    while (text.size() + many.size() + end.size() <= kLongest) text += many;
    while (text.size() + piece.size() + end.size() <= kLongest) text += piece;
    return text.append(end);
  };
  // The names are numbered, so that there are no duplicates.
  const auto numbered = [](std::string_view begin, std::string_view after, std::string_view end) {
    std::string text(begin);
    text.reserve(kLongest);
    for (int i = 0; text.size() + 16 + after.size() + end.size() <= kLongest; ++i) {
      text += i ? ",\"" : "\"";
      text += std::to_string(i);
      text += after;
    }
    return text.append(end);
  };
  const std::string_view empty = R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  const struct {
    const char* name;
    std::function<std::string()> header;
    const char* problem;
  } rows[] = {
      {"tensors", [&] { return numbered("{", empty, "}"); }, "header: lists too many tensors"},
      {"metadata", [&] { return numbered("{\"__metadata__\":{", "\":\"\"", "}}"); },
       "__metadata__: has too many entries"},
      {"dimensions", [&] { return full_of(R"({"a":{"dtype":"U8","shape":[1)", ",1", "]}}"); }, "a: shape is too long"},
      {"offsets", [&] { return full_of(R"({"a":{"data_offsets":[1)", ",1", "]}}"); }, "a: data_offsets is too long"},
      {"a name", [&] { return full_of("{\"", "n", "\":{}}"); }, "header: holds a text of over 16 MiB"},
      {"long names", [&] { return numbered("{", std::string(60'000, 'n') + std::string(empty), "}"); }, ""},
  };
  test::TempDir dir;
  for (const auto& row : rows) {
    CAPTURE(row.name);
    write_bytes(dir / "m.safetensors", file_of(row.header()));
    test::reset_peak_memory();
    const int64_t before = test::peak_memory();
    const absl::Status status = SafetensorsFile::open(dir / "m.safetensors").status();
    CHECK(test::peak_memory() - before < kLimit);
    CHECK(std::string(status.message()).find(row.problem) != std::string::npos);
    CHECK(status.ok() == (row.problem[0] == '\0'));
  }
}

TEST_CASE("A file that shrinks after it was opened is an error that names it", "[io][safetensors]") {
  test::TempDir dir;
  REQUIRE(save_safetensors(Fs::posix(), dir / "f", {{"a", torch::ones({100'000})}}).ok());
  const auto file = SafetensorsFile::open(dir / "f").value();
  stdfs::resize_file(dir / "f", 1000);
  const absl::Status status = file.tensor("a").status();
  CHECK(absl::IsDataLoss(status));
  CHECK(exit_code(status) == ExitCode::kWeights);
  CHECK(error_of(status)->where == (dir / "f"));
}

TEST_CASE("A tensor larger than memory in a sparse file is an error, not a crash", "[io][safetensors]") {
  test::TempDir dir;
  const std::string header = object(member("a", "U8", "[1125899906842624]", "[0,1125899906842624]"));  // 1 PiB
  write_bytes(dir / "f", file_of(header));
  std::error_code error;
  stdfs::resize_file(dir / "f", 8 + header.size() + (uint64_t{1} << 50), error);
  if (error) return;  // this file system does not support such sizes; the file above is "cut short"
  const absl::Status status = SafetensorsFile::open(dir / "f")->tensor("a").status();
  CHECK(absl::IsResourceExhausted(status));
}

TEST_CASE("Every prefix of a file is refused", "[io][safetensors]") {
  test::TempDir dir;
  REQUIRE(save_safetensors(Fs::posix(), dir / "whole",
                           {{"a", torch::ones({3, 2})}, {"b", torch::ones({5}, torch::kByte)}}, {{"format", "pt"}})
              .ok());
  const std::string whole = read_bytes(dir / "whole");
  for (size_t size = 0; size < whole.size(); ++size) {
    write_bytes(dir / "cut", whole.substr(0, size));
    const auto file = SafetensorsFile::open(dir / "cut");
    CAPTURE(size, file.status().ToString());
    REQUIRE_FALSE(file.ok());
    REQUIRE(exit_code(file.status()) == ExitCode::kWeights);
    REQUIRE(error_of(file.status())->where.starts_with(dir / "cut"));
  }
}
