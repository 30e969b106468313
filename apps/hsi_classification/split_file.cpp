// Reads and writes split files; docs/formats/split.md describes the format.
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "hsi_classification/split.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit::hsi {
namespace {

constexpr int64_t kMostBytes = int64_t{256} << 20;
constexpr const char* kFormat = "trainkit-split";

absl::Status bad_split(const std::string& path, const std::string& field, const std::string& problem,
                       const std::string& got = "", const std::string& expected = "") {
  return data_error("data.split", {.file = path, .field = field}, problem, got, expected);
}

absl::StatusOr<at::Tensor> read_part(const std::string& path, const nlohmann::json& file, const char* name,
                                     int64_t pixels, std::vector<bool>& taken) {
  const auto part = file.find(name);
  if (part == file.end() || !part->is_array()) return bad_split(path, name, "not a list of pixels");
  std::vector<int64_t> numbers;
  for (const auto& element : *part) {
    const bool in_range = element.is_number_integer() && element.get<int64_t>() >= 0 && element.get<int64_t>() < pixels;
    if (!in_range)
      return bad_split(path, name, "not a pixel of the scene", element.dump(), fmt::format("0 to {}", pixels - 1));
    numbers.push_back(element.get<int64_t>());
    if (taken[numbers.back()])
      return bad_split(path, name, "duplicate pixel", std::to_string(numbers.back()), "each pixel once, in one part");
    taken[numbers.back()] = true;
  }
  std::sort(numbers.begin(), numbers.end());
  return at::tensor(numbers, at::kLong);
}

std::string list_of(const at::Tensor& pixels) {
  const at::Tensor here = pixels.cpu().contiguous();
  const int64_t* data = here.const_data_ptr<int64_t>();
  return fmt::format("[{}]", fmt::join(data, data + here.numel(), ", "));
}

}  // namespace

absl::Status save_split(const std::string& path, const Split& split, int64_t height, int64_t width) {
  const std::string text = fmt::format(
      "{{\"format\": \"{}\", \"version\": 1, \"height\": {}, \"width\": {},\n\"train\": {},\n\"validation\": "
      "{},\n\"test\": {}}}\n",
      kFormat, height, width, list_of(split.train), list_of(split.validation), list_of(split.test));
  return write_file_atomically(Fs::posix(), path, text);
}

absl::StatusOr<Split> load_split(const std::string& path, int64_t height, int64_t width) {
  const auto text = Fs::posix().read_file(path, kMostBytes);
  if (!text.ok()) return reclassify(text.status(), ExitCode::kData, "data.split");
  const auto file = nlohmann::json::parse(*text, nullptr, false);
  if (file.is_discarded() || !file.is_object()) return bad_split(path, "", "not a JSON split file");
  if (file.value("format", nlohmann::json()) != kFormat || file.value("version", nlohmann::json()) != 1) {
    return bad_split(path, "format", "not a split of version 1", "", kFormat);
  }
  const auto is = [&](const char* name, int64_t size) {
    const auto found = file.find(name);
    return found != file.end() && found->is_number_integer() && *found == size;
  };
  if (!is("height", height) || !is("width", width)) {
    return bad_split(path, "height", "split of a scene of a different size",
                     fmt::format("{} x {}", file.value("height", nlohmann::json()).dump(),
                                 file.value("width", nlohmann::json()).dump()),
                     fmt::format("{} x {}", height, width));
  }
  std::vector<bool> taken(static_cast<size_t>(height * width), false);
  Split split;
  TRAINKIT_ASSIGN_OR_RETURN(split.train, read_part(path, file, "train", height * width, taken));
  TRAINKIT_ASSIGN_OR_RETURN(split.validation, read_part(path, file, "validation", height * width, taken));
  TRAINKIT_ASSIGN_OR_RETURN(split.test, read_part(path, file, "test", height * width, taken));
  if (split.train.numel() == 0) return bad_split(path, "train", "no pixel");
  if (split.test.numel() == 0) return bad_split(path, "test", "no pixel");
  return split;
}

}  // namespace trainkit::hsi
