// Our reader and writer of PyTorch files compared with Python's.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "io/torch/torch_bytes.h"
#include "reference_util.h"
#include "test_util.h"
#include "trainkit/io/weight_file.h"

using namespace trainkit;
using namespace trainkit::test;
namespace stdfs = std::filesystem;

namespace {

bool has_reference() { return !python().empty(); }

std::string joined(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers) {
    if (!text.empty()) text += ',';
    text += std::to_string(number);
  }
  return text;
}

/// The output of torch_files.py for one file.
struct Reference {
  std::string refusal;
  std::vector<std::vector<std::string>> tensors;  // name, dtype, sizes, strides, group
  std::vector<std::pair<std::string, std::string>> values;
};

struct Dump {
  std::vector<std::pair<std::string, Reference>> files;
  std::string data;
};

Dump dump(const TempDir& dir, const std::vector<std::string>& paths) {
  std::string arguments = "dump " + (dir / "dump");
  for (const std::string& path : paths) arguments += " '" + path + "'";
  run_reference("torch_files.py", arguments);
  Dump result;
  result.data = read_bytes(dir / "dump.bin");
  std::ifstream lines(dir / "dump.txt");
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> cells;
    size_t from = 0;
    for (size_t tab = line.find('\t'); tab != std::string::npos; tab = line.find('\t', from)) {
      cells.push_back(line.substr(from, tab - from));
      from = tab + 1;
    }
    cells.push_back(line.substr(from));
    if (cells[0] == "file") {
      result.files.emplace_back(cells[1], Reference{});
    } else if (cells[0] == "refused") {
      result.files.back().second.refusal = cells[1];
    } else if (cells[0] == "value") {
      result.files.back().second.values.emplace_back(cells[1], cells[2]);
    } else {
      result.files.back().second.tensors.push_back({cells.begin() + 1, cells.end()});
    }
  }
  return result;
}

/// Every file: the same names, dtypes, sizes, strides, sharing and bits, or a refusal by both readers.
struct Compared {
  int files = 0, refused = 0, tensors = 0;
};

bool lists_unread(const std::vector<std::pair<std::string, std::string>>& values) {
  return std::any_of(values.begin(), values.end(), [](const auto& v) { return v.second.ends_with("(not read)"); });
}

Compared compare(const Dump& dump) {
  Compared result;
  size_t at = 0;
  for (const auto& [path, reference] : dump.files) {
    CAPTURE(path);
    ++result.files;
    const auto file = TorchFile::open(path);
    CAPTURE(error_line(file.status()));
    if (!reference.refusal.empty()) {  // Python refuses objects that are listed here, and not read
      CHECK((!file.ok() || lists_unread(file->values())));
      ++result.refused;
      continue;
    }
    REQUIRE(file.ok());
    REQUIRE(file->entries().size() == reference.tensors.size());
    const NamedTensors all = file->tensors().value();
    std::map<int64_t, std::string> groups;  // our number of a storage -> Python's
    for (size_t i = 0; i < all.size(); ++i) {
      const TorchEntry& entry = file->entries()[i];
      const auto& expected = reference.tensors[i];
      CAPTURE(entry.name);
      CHECK(entry.name == expected[0]);
      CHECK(entry.dtype == expected[1]);
      CHECK(joined(entry.shape) == expected[2]);
      CHECK(joined(entry.strides) == expected[3]);
      if (expected[4] != "-1") CHECK(groups.try_emplace(entry.storage, expected[4]).first->second == expected[4]);
      const at::Tensor plain = all[i].second.contiguous();
      REQUIRE(at + plain.nbytes() <= dump.data.size());
      const auto equal = [&](const void* other) {
        return plain.nbytes() == 0 || std::memcmp(plain.const_data_ptr(), other, plain.nbytes()) == 0;
      };
      CHECK(equal(dump.data.data() + at));
      const at::Tensor alone = file->tensor(entry.name).value();
      CHECK(equal(alone.contiguous().const_data_ptr()));
      at += plain.nbytes();
      ++result.tensors;
    }
    for (const auto& [name, text] : reference.values) {
      const auto& values = file->values();
      const auto found = std::find_if(values.begin(), values.end(), [&](const auto& v) { return v.first == name; });
      CAPTURE(name, text);
      REQUIRE(found != values.end());
      if (found->second.find("bytes") == std::string::npos) CHECK(found->second == text);
    }
  }
  CHECK(at == dump.data.size());
  return result;
}

}  // namespace

TEST_CASE("Files of torch.save are read as Python reads them", "[io][torch_file]") {
  if (!has_reference()) TRAINKIT_SKIP("no Python with torch");
  TempDir dir;
  run_reference("torch_files.py", "make " + (dir / "made"));
  std::vector<std::string> paths;
  for (const auto& entry : stdfs::directory_iterator(dir / "made")) paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  const Compared compared = compare(dump(dir, paths));
  CHECK(compared.files == 22);
  CHECK(compared.refused == 0);
  CHECK(compared.tensors > 150);
}

TEST_CASE("PyTorch files from other sources are read as Python reads them, or refused as Python does",
          "[io][torch_file]") {
  if (!has_reference() || data_dir().empty()) TRAINKIT_SKIP("no Python with torch, or no TRAINKIT_TEST_DATA");
  TempDir dir;
  std::vector<std::string> paths;
  for (const auto& entry : stdfs::recursive_directory_iterator(data_dir() + "/weights")) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".pt" || extension == ".bin" || extension == ".th") paths.push_back(entry.path().string());
  }
  const Compared compared = compare(dump(dir, paths));
  CHECK(compared.files > compared.refused);
  std::cout << compared.files << " files, " << compared.refused << " refused, " << compared.tensors << " tensors\n";
}

TEST_CASE("Python reads the PyTorch files that we write", "[io][torch_file]") {
  if (!has_reference()) TRAINKIT_SKIP("no Python with torch");
  TempDir dir;
  const at::Tensor tied = torch::randn({5, 3});
  NamedTensors tensors = {{"scalar", torch::tensor(1.5)},
                          {"none", torch::empty({0, 3})},
                          {"größe/漢字", torch::ones({2})},
                          {"tied.a", tied},
                          {"tied.b", tied},
                          {"turned", tied.t()},
                          {"conj", torch::randn({3}, torch::kComplexFloat).conj()}};
  for (const auto type :
       {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kLong, torch::kInt, torch::kShort,
        torch::kChar, torch::kByte, torch::kBool, torch::kComplexFloat, torch::kComplexDouble, torch::kUInt16,
        torch::kUInt32, torch::kUInt64, torch::kFloat8_e4m3fn, torch::kFloat8_e5m2}) {
    tensors.emplace_back(c10::toString(type), torch::randint(0, 100, {3, 5}).to(type));
  }
  REQUIRE(save_torch_file(Fs::posix(), dir / "ours.pt", tensors) == absl::OkStatus());
  REQUIRE(save_torch_file(Fs::posix(), dir / "none.pt", {}) == absl::OkStatus());
  // 64-bit fields throughout, as in a file of 4 GiB.
  const std::string storage = p_storage("FloatStorage", "0", p_int(2));
  write_zip(dir / "zip64.pt",
            archive_of(pickled_a(p_tensor(storage, p_int(0), "K\2\x85", "K\1\x85")),
                       {little_endian(1.f) + little_endian(2.f)}),
            0);
  const Dump read = dump(dir, {dir / "ours.pt", dir / "none.pt", dir / "zip64.pt"});
  const Compared compared = compare(read);
  CHECK(compared.refused == 0);
  CHECK(compared.tensors == static_cast<int>(tensors.size()) + 1);
  const auto& ours = read.files[0].second.tensors;
  for (size_t i = 0; i < tensors.size(); ++i) {
    CHECK(ours[i][0] == tensors[i].first);
    CHECK(ours[i][2] == joined(tensors[i].second.sizes().vec()));
  }
  CHECK(ours[3][4] == ours[4][4]);  // tied again
}
