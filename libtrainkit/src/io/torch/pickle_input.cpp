#include "io/torch/pickle_input.h"

#include <fmt/format.h>

#include <algorithm>

#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr uint64_t kReadAhead = 1 << 18;
constexpr uint64_t kMaxLineBytes = 1024;

}  // namespace

PickleInput::PickleInput(std::string bytes, std::string where)
    : bytes_(std::move(bytes)), where_(std::move(where)), total_(bytes_.size()) {}

PickleInput::PickleInput(const ReadableFile& file)
    : where_(file.path() + "@"), file_(&file), total_(static_cast<uint64_t>(file.size_bytes())) {}

Error PickleInput::error(uint64_t offset, std::string problem) const {
  return {.exit_code = ExitCode::kWeights,
          .id = "weights.pickle",
          .where = fmt::format("{}0x{:x}", where_, offset),
          .problem = std::move(problem)};
}

absl::Status PickleInput::fill(uint64_t end) {
  // Bytes are kept until the end, because values of the pickle refer to them by offset. kMaxPickleBytes limits that
  // memory.
  if (end <= bytes_.size()) return absl::OkStatus();
  if (end > kMaxPickleBytes) {
    Error error = this->error(position_, "the pickle is too long");
    error.expected = fmt::format("at most {} bytes", kMaxPickleBytes);
    return to_status(error);
  }
  const uint64_t from = bytes_.size();
  bytes_.resize(std::min(std::max(end, from + kReadAhead), total_));
  auto status = file_->read_at(static_cast<int64_t>(from), bytes_.data() + from, bytes_.size() - from);
  return reclassify(status, ExitCode::kWeights, "weights.file");
}

absl::StatusOr<std::string_view> PickleInput::take(uint64_t count) {
  if (count > total_ - position_) {
    Error error = this->error(position_, "the pickle is cut short");
    error.got = fmt::format("{} bytes left", total_ - position_);
    error.expected = fmt::format("{}", count);
    return to_status(error);
  }
  TRAINKIT_RETURN_IF_ERROR(fill(position_ + count));
  position_ += count;
  return view(position_ - count, count);
}

absl::StatusOr<std::string_view> PickleInput::line() {
  const uint64_t begin = position_;
  while (position_ - begin <= kMaxLineBytes) {
    TRAINKIT_ASSIGN_OR_RETURN(const std::string_view byte, take(1));
    if (byte[0] == '\n') return view(begin, position_ - begin - 1);
  }
  return to_status(error(begin, "a name is too long"));
}

}  // namespace trainkit::detail
