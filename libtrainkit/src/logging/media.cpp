#include "logging/media.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "logging/append_file.h"
#include "logging/escape_name.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/sinks.h"

namespace trainkit {
namespace {

constexpr std::string_view kStepPart = ".step-", kPngPart = ".png";
constexpr int64_t kRanges = 64;

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/// Whether a record of this step and tag goes when the log is rewound to `step`.
bool is_after(int64_t at, std::string_view tag, int64_t step) {
  return at > step || (at == step && (tag == "test" || tag.starts_with("test/")));
}

}  // namespace

std::string detail::media_file_name(std::string_view tag, int64_t step) {
  std::string name;
  for (const char c : tag) name += is_plain(c) ? std::string(1, c) : fmt::format("%{:02X}", static_cast<uint8_t>(c));
  return fmt::format("{}{}{:08}{}", name, kStepPart, step, kPngPart);
}

detail::MediaName detail::read_media_name(std::string_view file) {
  const MediaName none = {.tag = {}, .step = -1};
  if (!file.ends_with(kPngPart)) return none;
  const std::string_view stem = file.substr(0, file.size() - kPngPart.size());
  const size_t at = stem.rfind(kStepPart);
  if (at == stem.npos) return none;
  MediaName name;
  for (size_t i = 0; i < at; ++i) {
    unsigned code = 0;
    if (is_plain(stem[i])) {
      name.tag += stem[i];
    } else if (stem[i] == '%' && i + 2 < at &&
               std::from_chars(stem.data() + i + 1, stem.data() + i + 3, code, 16).ptr == stem.data() + i + 3) {
      name.tag += static_cast<char>(code);
      i += 2;
    } else {
      return none;
    }
  }
  const std::string_view digits = stem.substr(at + kStepPart.size());
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), name.step);
  if (read.ec != std::errc() || media_file_name(name.tag, name.step) != file) return none;
  return name;
}

std::string detail::png_of(const LogImage& image) {
  if (!image.png.empty()) return image.png;
  absl::StatusOr<std::string> png = encode_png(image.pixels);
  return png.ok() ? *std::move(png) : std::string();
}

std::string detail::to_json(const LogHistogram& h) {
  nlohmann::ordered_json json = {
      {"step", h.step}, {"tag", escape_name(h.tag)},          {"min", h.min},      {"max", h.max},
      {"sum", h.sum},   {"sum_of_squares", h.sum_of_squares}, {"counts", h.counts}};
  if (h.non_finite > 0) json["non_finite"] = h.non_finite;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

LogHistogram detail::histogram_of(std::string_view line) {
  LogHistogram h{.step = -1};
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return h;
  try {
    LogHistogram read{.step = json.at("step").get<int64_t>(), .tag = json.at("tag").get<std::string>()};
    const auto number = [&](const char* key) {  // null: beyond float64
      return json.at(key).is_number() ? json[key].get<double>() : std::numeric_limits<double>::infinity();
    };
    read.min = number("min"), read.max = number("max");
    read.sum = number("sum"), read.sum_of_squares = number("sum_of_squares");
    read.counts = json.at("counts").get<std::vector<int64_t>>();
    read.non_finite = json.value("non_finite", int64_t{0});
    return read;
  } catch (const nlohmann::json::exception&) {
    return h;
  }
}

std::vector<LogHistogram> detail::read_histograms(const std::string& path) {
  std::vector<LogHistogram> all;
  const absl::StatusOr<std::string> text = Fs::posix().read_file(path, int64_t{256} << 20);
  if (!text.ok()) return all;
  for (size_t begin = 0, end = 0; (end = text->find('\n', begin)) != text->npos; begin = end + 1) {
    LogHistogram histogram = histogram_of(std::string_view(*text).substr(begin, end - begin));
    if (histogram.step < 0) break;
    all.push_back(std::move(histogram));
  }
  return all;
}

void Logger::image(std::string_view tag, int64_t step, const at::Tensor& picture) {
  at::Tensor pixels = picture.detach();
  if (pixels.dim() == 2) pixels = pixels.unsqueeze(0);
  const bool has_type = pixels.scalar_type() == at::kByte || pixels.is_floating_point();
  TORCH_CHECK_VALUE(pixels.dim() == 3 && (pixels.size(0) == 1 || pixels.size(0) == 3) && pixels.numel() > 0 && has_type,
                    "image '", tag, "': expected (C, H, W) or (H, W), uint8 or floating point, with C 1 or 3, got ",
                    picture.sizes(), " ", picture.scalar_type());
  const at::NoGradGuard no_grad;
  if (pixels.is_floating_point()) {
    pixels = (pixels.to(at::kFloat).nan_to_num(0.0, 1.0, 0.0).clamp(0, 1) * 255).round().to(at::kByte);
  }
  pixels = pixels.permute({1, 2, 0}).expand({pixels.size(1), pixels.size(2), 3});
  // A copy, which later steps do not change.
  log_image(
      {.step = step, .tag = std::string(tag), .pixels = pixels.to(at::kCPU, at::kByte, false, true).contiguous()});
}

void Logger::histogram(std::string_view tag, int64_t step, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  LogHistogram h{.step = step, .tag = std::string(tag)};
  const at::Tensor all = values.detach().reshape(-1).to(at::kDouble);
  if (all.numel() == 0) return log_histogram(h);
  constexpr double kMost = std::numeric_limits<double>::max();
  const at::Tensor is_finite = all.isfinite(), counted = is_finite.to(at::kLong);
  const at::Tensor finite = at::where(is_finite, all, 0.0);
  const at::Tensor least = at::where(is_finite, all, kMost).min(), most = at::where(is_finite, all, -kMost).max();
  const at::Tensor share = (finite - least) / (most - least);  // NaN if all are equal
  const at::Tensor range = (share.nan_to_num(0.0, 0.0, 0.0) * kRanges).clamp(0, kRanges - 1).to(at::kLong);
  const at::Tensor counts = at::zeros({kRanges}, counted.options()).scatter_add_(0, range, counted);
  const at::Tensor numbers =
      at::cat({at::stack({least, most, finite.sum(), finite.square().sum()}), counts.to(at::kDouble)})
          .cpu();  // waits for the device
  const auto* const n = numbers.const_data_ptr<double>();
  for (int64_t i = 0; i < kRanges; ++i) h.counts.push_back(static_cast<int64_t>(n[4 + i]));
  int64_t finite_values = 0;
  for (const int64_t count : h.counts) finite_values += count;
  h.non_finite = all.numel() - finite_values;
  if (finite_values == 0) {
    h.counts.clear();
  } else {
    h.min = n[0], h.max = n[1], h.sum = n[2], h.sum_of_squares = n[3];
    if (h.min == h.max) h.counts = {finite_values};
  }
  log_histogram(h);
}

class MediaLogger::Impl {
 public:
  explicit Impl(std::string folder) : folder_(std::move(folder)) {}

  void write(const LogImage& image) {
    if (!make_folder()) return;
    const std::string path = folder_ + "/" + detail::media_file_name(image.tag, image.step);
    status_.Update(write_file_atomically(Fs::posix(), path, detail::png_of(image)));
  }

  void write(const LogHistogram& histogram) {
    if (!make_folder()) return;
    if (!file_) {
      auto file = detail::AppendFile::open(folder_ + "/" + detail::kHistogramFile);
      status_.Update(file.status());
      if (!file.ok()) return;
      file_ = *std::move(file);
    }
    file_->append(detail::to_json(histogram) + "\n");
  }

  absl::Status flush() {
    if (file_) status_.Update(file_->flush());
    return std::exchange(status_, absl::OkStatus());
  }

  absl::Status rewind(int64_t step) {
    std::error_code none;
    for (std::filesystem::directory_iterator entry(folder_, none), end; !none && entry != end; entry.increment(none)) {
      const detail::MediaName name = detail::read_media_name(entry->path().filename().string());
      if (name.step < 0 || !is_after(name.step, name.tag, step)) continue;
      if (::unlink(entry->path().c_str()) != 0 && errno != ENOENT) {
        return detail::storage_error(entry->path().string(), "cannot remove", errno);
      }
    }
    file_.reset();
    const std::string path = folder_ + "/" + detail::kHistogramFile;
    return Fs::posix().exists(path) ? rewind_histograms(path, step) : absl::OkStatus();
  }

 private:
  bool make_folder() {
    if (has_folder_) return true;
    const absl::Status made = Fs::posix().create_directories(folder_).status();
    status_.Update(made);
    return has_folder_ = made.ok();
  }

  /// Reads the end of the file; more and more of it, until a line is in it that stays.
  static absl::Status rewind_histograms(const std::string& path, int64_t step) {
    TRAINKIT_ASSIGN_OR_RETURN(const ReadableFile file, Fs::posix().open_file(path));
    const int64_t size = file.size_bytes();
    for (int64_t most = int64_t{1} << 20;; most *= 2) {
      const int64_t begin = std::max<int64_t>(size - most, 0);
      std::string text(static_cast<size_t>(size - begin), '\0');
      TRAINKIT_RETURN_IF_ERROR(file.read_at(begin, text.data(), text.size()));
      // A part begins within a line.
      const size_t first = begin == 0 ? 0 : std::min(text.find('\n'), text.size() - 1) + 1;
      size_t keep = first;
      for (size_t at = first, end = 0; (end = text.find('\n', at)) != text.npos; at = end + 1) {
        const LogHistogram h = detail::histogram_of(std::string_view(text).substr(at, end - at));
        if (h.step < 0 || is_after(h.step, h.tag, step)) break;
        keep = end + 1;
      }
      if (keep == first && begin > 0) continue;
      if (::truncate(path.c_str(), begin + static_cast<off_t>(keep)) != 0) {
        return detail::storage_error(path, "cannot truncate to the last complete record", errno);
      }
      return absl::OkStatus();
    }
  }

  const std::string folder_;
  bool has_folder_ = false;
  std::unique_ptr<detail::AppendFile> file_;
  absl::Status status_;
};

MediaLogger::MediaLogger(const std::string& folder) : impl_(std::make_unique<Impl>(folder)) {}
MediaLogger::~MediaLogger() = default;

void MediaLogger::log(const LogRecord&) {}
void MediaLogger::log_image(const LogImage& image) { impl_->write(image); }
void MediaLogger::log_histogram(const LogHistogram& histogram) { impl_->write(histogram); }
absl::Status MediaLogger::flush() { return impl_->flush(); }
absl::Status MediaLogger::rewind(int64_t step) { return impl_->rewind(step); }

}  // namespace trainkit
