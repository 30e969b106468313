#pragma once
// The rows of a ring for a checkpoint, while they are overwritten.

#include <absl/status/status.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "rl/row_ring.h"
#include "trainkit/core/fs.h"

namespace trainkit::detail {

/// Rows [begin, end) of a ring as they were when the snapshot was made. They are copied segment by segment, the oldest
/// first, which appenders overwrite next. A segment is copied once: by write(), or by an appender that would overwrite
/// it. So an appender waits at most for the copy of the segments that it overwrites, never for the disk. Any threads.
class RingSnapshot {
 public:
  static constexpr int64_t kSegmentBytes = int64_t{64} << 20;

  /// Keeps a reference to `ring`.
  RingSnapshot(const RowRing& ring, int64_t begin, int64_t end, int64_t segment_bytes = kSegmentBytes);

  /// Size of the file.
  int64_t bytes() const;
  /// Appends the header and all rows to `file`. docs/formats/checkpoint.md has the format. Called once.
  absl::Status write(WritableFile& file);
  /// Copies the segments with rows of [begin, end) that are not copied yet. Call it before these are overwritten.
  void preserve(int64_t begin, int64_t end);

 private:
  enum class State { kInRing, kBeingCopied, kCopied };
  struct Segment {
    State state = State::kInRing;
    std::vector<std::byte> rows = {};  // if an appender has copied it
  };

  int64_t first_row(size_t segment) const { return begin_ + static_cast<int64_t>(segment) * segment_rows_; }
  int64_t last_row(size_t segment) const;
  void copy(size_t segment, std::vector<std::byte>& to);

  const RowRing& ring_;
  int64_t begin_, end_, segment_rows_;
  std::mutex mutex_;  // guards segments_
  std::condition_variable copied_;
  std::vector<Segment> segments_;
};

/// Reads what RingSnapshot::write has written into `ring`: the newest rows if not all fit. Returns in `begin` and `end`
/// the rows that the ring has then. Error of exit code 5: it is no such file, or of other fields.
absl::Status read_rows(const ReadableFile& file, RowRing& ring, int64_t& begin, int64_t& end);

}  // namespace trainkit::detail
