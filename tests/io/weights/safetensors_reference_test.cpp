// Our reader and writer compared with the reference, Python's safetensors.
#include <cstring>
#include <filesystem>
#include <fstream>

#include "reference_util.h"
#include "test_util.h"
#include "trainkit/io/safetensors.h"

using namespace trainkit;
namespace stdfs = std::filesystem;

namespace {

bool has_safetensors() { return test::python_has("safetensors torch"); }

std::string read(const std::string& path) { return Fs::posix().read_file(path, int64_t{1} << 30).value(); }

/// Files that we refuse intentionally although the reference accepts them.
bool is_stricter(const std::string& line) {
  for (const char* reason :
       {"is a duplicate", "has its '", "does not start with '{'", "is nested deeper", "name holds control characters",
        "is not an object (got 'a list')", "make no whole number of bytes below 2^64"}) {
    if (line.find(reason) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("Mutated files get the reference's result", "[io][safetensors]") {
  if (!has_safetensors()) TRAINKIT_SKIP("no Python with safetensors and torch");
  test::TempDir dir;
  const std::string count = test::is_full() ? "200000" : "20000";
  test::run_reference("safetensors_verdicts.py", (dir / "records") + " " + count + " 1");
  std::ifstream records(dir / "records", std::ios::binary);
  const std::string path = dir / "f";
  int accepted = 0, refused = 0, stricter = 0;
  for (uint8_t verdict = 0; records.read(reinterpret_cast<char*>(&verdict), 1);) {
    uint32_t size = 0;
    records.read(reinterpret_cast<char*>(&size), 4);
    std::string bytes(size, '\0');
    records.read(bytes.data(), size);
    std::ofstream(path, std::ios::binary) << bytes;
    const auto file = SafetensorsFile::open(path);
    CAPTURE(bytes, file.status().ToString());
    if (file.ok()) {
      REQUIRE(verdict == 1);
      ++accepted;
      for (const auto& entry : file->entries()) {
        const auto tensor = file->tensor(entry.name);
        REQUIRE((tensor.ok() || absl::IsUnimplemented(tensor.status())));
      }
    } else {
      REQUIRE(exit_code(file.status()) == ExitCode::kWeights);
      if (verdict == 1) REQUIRE(is_stricter(error_line(file.status())));
      ++(verdict == 1 ? stricter : refused);
    }
  }
  CHECK(accepted > 1000);
  CHECK(refused > 1000);
  CHECK(stricter < accepted / 10);
  std::cout << accepted << " accepted, " << refused << " refused, " << stricter << " refused by us alone" << std::endl;
}

TEST_CASE("Python reads the files that we write, and writes the same bytes", "[io][safetensors]") {
  if (!has_safetensors()) TRAINKIT_SKIP("no Python with safetensors and torch");
  test::TempDir dir;
  NamedTensors tensors = {{"scalar", torch::tensor(1.5)},
                          {"none", torch::empty({0, 3})},
                          {"flag", torch::tensor({true, false})},
                          {"quote \" \\ tab", torch::ones({2})},
                          {"größe/漢字", torch::ones({2})}};
  for (const auto type : {torch::kByte, torch::kChar, torch::kShort, torch::kInt, torch::kLong, torch::kHalf,
                          torch::kBFloat16, torch::kFloat, torch::kDouble, torch::kComplexFloat, torch::kUInt16,
                          torch::kUInt32, torch::kUInt64, torch::kFloat8_e4m3fn, torch::kFloat8_e5m2}) {
    tensors.emplace_back(c10::toString(type), torch::randint(0, 100, {3, 5}).to(type));
  }
  for (const SafetensorsMetadata& metadata : {SafetensorsMetadata{}, SafetensorsMetadata{{"format", "pt"}}}) {
    REQUIRE(save_safetensors(Fs::posix(), dir / "ours", tensors, metadata).ok());
    test::run_reference("safetensors_copy.py", (dir / "ours") + " " + (dir / "theirs"));
    CHECK(read(dir / "ours") == read(dir / "theirs"));
  }
}

TEST_CASE("Files from other sources are read as Python reads them", "[io][safetensors]") {
  if (!has_safetensors() || test::data_dir().empty())
    TRAINKIT_SKIP("no Python with safetensors, or no TRAINKIT_TEST_DATA");
  test::TempDir dir;
  int files = 0;
  for (const auto& entry : stdfs::recursive_directory_iterator(test::data_dir() + "/weights")) {
    if (entry.path().extension() != ".safetensors") continue;
    CAPTURE(entry.path().string());
    const auto file = SafetensorsFile::open(entry.path().string());
    REQUIRE(file.status() == absl::OkStatus());
    REQUIRE(save_safetensors(Fs::posix(), dir / "ours", file->tensors().value(), file->metadata()).ok());
    test::run_reference("safetensors_copy.py", entry.path().string() + " " + (dir / "theirs"));
    CHECK(read(dir / "ours") == read(dir / "theirs"));
    ++files;
  }
  CHECK(files > 0);
}
