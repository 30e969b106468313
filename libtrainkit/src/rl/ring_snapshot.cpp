#include "rl/ring_snapshot.h"

#include <algorithm>
#include <array>

#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr int64_t kFormat = 1;
constexpr int64_t kMaxRow = int64_t{1} << 60;

/// The header of the file, in this order.
enum { kVersion, kBegin, kEnd, kSegmentRows, kRowBytes, kFields, kNumbers };
using Header = std::array<int64_t, kNumbers>;

absl::Status wrong_file(const ReadableFile& file, const std::string& problem) {
  return to_status({.exit_code = ExitCode::kWeights, .id = "ckpt.source", .where = file.path(), .problem = problem},
                   absl::StatusCode::kInvalidArgument);
}

}  // namespace

RingSnapshot::RingSnapshot(const RowRing& ring, int64_t begin, int64_t end, int64_t segment_bytes)
    : ring_(ring),
      begin_(begin),
      end_(end),
      segment_rows_(std::max<int64_t>(1, segment_bytes / std::max<int64_t>(1, ring.row_bytes()))),
      segments_(static_cast<size_t>((end - begin + segment_rows_ - 1) / segment_rows_)) {}

int64_t RingSnapshot::last_row(size_t segment) const { return std::min(end_, first_row(segment) + segment_rows_); }

int64_t RingSnapshot::bytes() const {
  return static_cast<int64_t>(sizeof(Header)) + (end_ - begin_) * ring_.row_bytes();
}

/// Copies a segment of state kBeingCopied, which this thread has set.
void RingSnapshot::copy(size_t segment, std::vector<std::byte>& to) {
  to.resize(static_cast<size_t>((last_row(segment) - first_row(segment)) * ring_.row_bytes()));
  ring_.read(first_row(segment), last_row(segment), to.data());
  const std::lock_guard lock(mutex_);
  segments_[segment].state = State::kCopied;
  copied_.notify_all();
}

absl::Status RingSnapshot::write(WritableFile& file) {
  const Header header = {kFormat, begin_, end_, segment_rows_, ring_.row_bytes(), std::ssize(ring_.blocks())};
  TRAINKIT_RETURN_IF_ERROR(file.append(header.data(), sizeof(header)));
  std::vector<std::byte> own;
  for (size_t i = 0; i < segments_.size(); ++i) {
    std::vector<std::byte> kept;
    {
      std::unique_lock lock(mutex_);
      copied_.wait(lock, [&] { return segments_[i].state != State::kBeingCopied; });
      kept.swap(segments_[i].rows);
      if (segments_[i].state == State::kInRing) segments_[i].state = State::kBeingCopied;
    }
    if (kept.empty()) copy(i, own);
    const std::vector<std::byte>& rows = kept.empty() ? own : kept;
    TRAINKIT_RETURN_IF_ERROR(file.append(rows.data(), rows.size()));
  }
  return absl::OkStatus();
}

void RingSnapshot::preserve(int64_t begin, int64_t end) {
  begin = std::max(begin, begin_);
  end = std::min(end, end_);
  for (int64_t row = begin; row < end;) {
    const auto i = static_cast<size_t>((row - begin_) / segment_rows_);
    row = last_row(i);
    {
      std::unique_lock lock(mutex_);
      copied_.wait(lock, [&] { return segments_[i].state != State::kBeingCopied; });
      if (segments_[i].state == State::kCopied) continue;
      segments_[i].state = State::kBeingCopied;
    }
    copy(i, segments_[i].rows);
  }
}

absl::Status read_rows(const ReadableFile& file, RowRing& ring, int64_t& begin, int64_t& end) {
  Header header = {};
  if (file.size_bytes() < static_cast<int64_t>(sizeof(header))) return wrong_file(file, "is too short for rows");
  TRAINKIT_RETURN_IF_ERROR(file.read_at(0, header.data(), sizeof(header)));
  if (header[kVersion] != kFormat) return wrong_file(file, "does not contain rows of this version");
  if (header[kRowBytes] != ring.row_bytes() || header[kFields] != std::ssize(ring.blocks())) {
    return wrong_file(file, "has rows of other fields");
  }
  begin = header[kBegin];
  end = header[kEnd];
  const int64_t segment_rows = header[kSegmentRows], row_bytes = std::max<int64_t>(1, ring.row_bytes());
  const int64_t bytes = file.size_bytes() - static_cast<int64_t>(sizeof(header));
  const bool is_valid = 0 <= begin && begin <= end && end < kMaxRow && segment_rows >= 1;
  if (!is_valid || bytes % row_bytes != 0 || bytes / row_bytes != end - begin) {
    return wrong_file(file, "has another number of rows than its header says");
  }
  std::vector<std::byte> rows;
  auto at = static_cast<int64_t>(sizeof(header));
  for (int64_t row = begin; row < end; row += segment_rows) {
    const int64_t last = std::min(end, row + segment_rows);
    rows.resize(static_cast<size_t>((last - row) * row_bytes));
    TRAINKIT_RETURN_IF_ERROR(file.read_at(at, rows.data(), rows.size()));
    ring.write(row, last, rows.data());  // later rows overwrite those that do not fit
    at += std::ssize(rows);
  }
  begin = std::max(begin, end - ring.slots());
  return absl::OkStatus();
}

}  // namespace trainkit::detail
