// Reads and writes split files; docs/formats/split.md describes the format.
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "hsi_classification/split.h"
#include "trainkit/app/stored_values.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit::hsi {
namespace {

constexpr char kFormat[] = "trainkit-split";
constexpr const char* kParts[] = {"train", "validation", "test"};

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
  constexpr char kOtherScene[] = "split of a scene of a different size";
  const Error blame{.exit_code = ExitCode::kData, .id = "data.split", .expected = "a split of trainkit-hsi"};
  constexpr char kOtherPixel[] = "not a pixel of the scene";
  const int64_t last = height * width - 1;
  std::string format;
  int64_t number = 0;
  std::vector<int64_t> parts[3];
  TRAINKIT_RETURN_IF_ERROR(load_values(path,
                                       {{"format", &format},
                                        {"version", &number, 0, 1, 1, "not a split of version 1"},
                                        {"height", &number, 0, height, height, kOtherScene},
                                        {"width", &number, 0, width, width, kOtherScene},
                                        {"train", &parts[0], 1, 0, last, kOtherPixel},
                                        {"validation", &parts[1], 0, 0, last, kOtherPixel},
                                        {"test", &parts[2], 1, 0, last, kOtherPixel}},
                                       blame));
  if (format != kFormat) {
    return data_error("data.split", {.file = path, .field = "format"}, "not a split", format, kFormat);
  }
  std::vector<bool> taken(static_cast<size_t>(height * width), false);
  for (size_t i = 0; i < 3; ++i) {
    std::sort(parts[i].begin(), parts[i].end());
    for (const int64_t pixel : parts[i]) {
      if (taken[static_cast<size_t>(pixel)]) {
        return data_error("data.split", {.file = path, .field = kParts[i]}, "duplicate pixel", std::to_string(pixel),
                          "each pixel once, in one part");
      }
      taken[static_cast<size_t>(pixel)] = true;
    }
  }
  return Split{at::tensor(parts[0], at::kLong), at::tensor(parts[1], at::kLong), at::tensor(parts[2], at::kLong)};
}

}  // namespace trainkit::hsi
