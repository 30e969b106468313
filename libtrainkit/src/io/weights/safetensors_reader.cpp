#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "io/weights/safetensors_header.h"
#include "io/weights/weight_content.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors data is little-endian and read without conversion");

using detail::safetensors_error;

absl::Status not_safetensors(const ReadableFile& file, std::string problem, std::string got, std::string expected) {
  Error error = safetensors_error(file.path(), {}, std::move(problem));
  error.got = std::move(got);
  error.expected = std::move(expected);
  error.hint = detail::content_hint(detail::weight_content(file));
  return to_status(error);
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::open(const std::string& path, const Fs& fs) {
  auto file = fs.open_file(path);
  if (!file.ok()) return reclassify(file.status(), ExitCode::kWeights, "weights.file");
  return open(std::move(*file));
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::open(ReadableFile file) {
  const auto blame = [](const absl::Status& status) { return reclassify(status, ExitCode::kWeights, "weights.file"); };
  if (file.size_bytes() < 8) {
    return not_safetensors(file, "is too short for a safetensors file", fmt::format("{} bytes", file.size_bytes()),
                           "at least 10");
  }
  const auto bytes = static_cast<uint64_t>(file.size_bytes());
  uint64_t header_bytes = 0;
  if (auto status = file.read_at(0, &header_bytes, 8); !status.ok()) return blame(status);
  if (header_bytes > detail::kMaxHeaderBytes) {
    return not_safetensors(file, "is not a safetensors file: its header would be too long",
                           fmt::format("{} bytes", header_bytes), fmt::format("at most {}", detail::kMaxHeaderBytes));
  }
  if (header_bytes > bytes - 8) {
    return not_safetensors(file, "is cut short within its header", fmt::format("{} bytes", bytes),
                           fmt::format("at least {}", 8 + header_bytes));
  }
  std::string text(header_bytes, '\0');
  if (auto status = file.read_at(8, text.data(), text.size()); !status.ok()) return blame(status);
  TRAINKIT_ASSIGN_OR_RETURN(auto header, detail::parse_safetensors_header(text, bytes - 8 - header_bytes, file.path()));

  SafetensorsFile result;
  result.file_ = std::make_shared<const ReadableFile>(std::move(file));
  result.data_begin_ = static_cast<int64_t>(8 + header_bytes);
  result.entries_ = std::move(header.entries);
  result.metadata_ = std::move(header.metadata);
  result.by_name_.resize(result.entries_.size());
  std::iota(result.by_name_.begin(), result.by_name_.end(), 0u);
  std::sort(result.by_name_.begin(), result.by_name_.end(),
            [&](uint32_t a, uint32_t b) { return result.entries_[a].name < result.entries_[b].name; });
  return result;
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  names.reserve(entries_.size());
  for (const auto& entry : entries_) names.push_back(entry.name);
  return names;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](uint32_t i, std::string_view wanted) { return entries_[i].name < wanted; });
  return at != by_name_.end() && entries_[*at].name == name ? &entries_[*at] : nullptr;
}

absl::StatusOr<at::Tensor> SafetensorsFile::tensor(std::string_view name) const {
  if (const SafetensorsEntry* entry = find(name)) return read(*entry);
  Error error = safetensors_error(path(), std::string(name), "is not in the file");
  if (const std::string near = nearest_name(name, names()); !near.empty()) error.hint = "did you mean '" + near + "'?";
  return to_status(error, absl::StatusCode::kNotFound);
}

NamedTensorsOr SafetensorsFile::tensors() const {
  NamedTensors all;
  all.reserve(entries_.size());
  for (const auto& entry : entries_) {
    TRAINKIT_ASSIGN_OR_RETURN(auto tensor, read(entry));
    all.emplace_back(entry.name, std::move(tensor));
  }
  return all;
}

absl::StatusOr<at::Tensor> SafetensorsFile::read(const SafetensorsEntry& entry) const {
  const auto scalar_type = detail::find_dtype(entry.dtype)->scalar_type;
  if (!scalar_type) {
    Error error = safetensors_error(path(), entry.name, "has a dtype that LibTorch cannot hold");
    error.got = entry.dtype;
    return to_status(error, absl::StatusCode::kUnimplemented);
  }
  at::Tensor tensor;
  try {
    tensor = at::empty(entry.shape, at::TensorOptions().dtype(*scalar_type));
  } catch (...) {
    if (entry.end > entry.begin) return annotate(status_from_current_exception(), path() + ": " + entry.name);
    Error error = safetensors_error(path(), entry.name, "is empty, of sizes whose strides LibTorch cannot hold");
    error.got = fmt::format("shape [{}]", fmt::join(entry.shape, ", "));
    return to_status(error, absl::StatusCode::kUnimplemented);
  }
  const auto size = static_cast<size_t>(entry.end - entry.begin);
  TRAINKIT_RETURN_IF_ERROR(read_bytes(entry, 0, tensor.data_ptr(), size));
  return tensor;
}

/// Reads bytes of a tensor from `offset` within it.
absl::Status SafetensorsFile::read_bytes(const SafetensorsEntry& entry, int64_t offset, void* data,
                                         size_t bytes) const {
  const absl::Status status = file_->read_at(data_begin_ + entry.begin + offset, data, bytes);
  if (!status.ok()) return reclassify(status, ExitCode::kWeights, "weights.file");
  auto* values = static_cast<char*>(data);
  // A bool with a byte other than 0 and 1 would be undefined behaviour.
  if (entry.dtype == "BOOL") std::transform(values, values + bytes, values, [](char b) { return b != 0; });
  return absl::OkStatus();
}

}  // namespace trainkit
