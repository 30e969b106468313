#pragma once
/// Keeps what a report shows of the records of a run, in memory that does not grow with their number.

#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "report/report_chart.h"
#include "trainkit/core/fs.h"
#include "trainkit/logging/logger.h"

namespace trainkit::detail {

/// Values of one name in one split. Up to kMostBuckets values are kept as they are. Of more, the lowest, the highest
/// and the mean of each stretch of 2, 4, 8, ... values.
class ValueSeries {
 public:
  static constexpr size_t kMostBuckets = 8192;
  enum class Axis { kStep, kSeconds };

  void add(double step, double seconds, double value);
  bool is_empty() const { return buckets_.empty(); }
  /// The values, or the lowest and highest of each stretch.
  std::vector<ChartPoint> extremes(Axis axis) const;
  /// The values, or the mean of each stretch, without its values that are not finite.
  std::vector<ChartPoint> means(Axis axis) const;
  /// Whether the seconds of all values are finite.
  bool is_timed() const { return is_timed_; }

 private:
  struct Point {
    double step, seconds, y;
  };
  struct Bucket {
    Point low, high;
    Point sum;  // of y: of the finite values
    int64_t count, finite;
  };
  void merge_pairs();

  std::vector<Bucket> buckets_;
  int64_t width_ = 1;  // values of a full bucket
  bool is_timed_ = true;
};

/// A cause of a slow record. `share` is the measured share of the time that explains it, if there is one.
struct StallCause {
  enum class Kind : uint8_t { kData, kHost, kOthers, kSave, kReduce, kSession, kEvaluation, kProcessor, kUnknown };
  Kind kind = Kind::kUnknown;
  double share = 0;
};
std::string describe(const StallCause& cause);

/// A training record that may be a slow one.
struct StallCandidate {
  double step = 0, seconds = 0;
  double samples_per_second = 0, tokens_per_second = 0;
  StallCause cause = {};
};

/// A session of the run: the Unix time of its start and the step that it continues.
struct SessionStartTime {
  double started = 0, first_step = 0;
  bool operator==(const SessionStartTime&) const = default;
};

/// The records of a run.
class RunHistory {
 public:
  RunHistory() = default;
  explicit RunHistory(std::vector<SessionStartTime> sessions) : sessions_(std::move(sessions)) {}

  /// Reads the records that the file has more than at the last call. Reads all again if the file is no longer the one
  /// of that call with more lines. kNotFound if it does not exist; exit code 6 for other errors.
  absl::Status read(const std::string& path);
  const std::vector<SessionStartTime>& sessions() const { return sessions_; }

  int64_t count() const { return facts_.count; }
  int64_t last_step() const { return facts_.last_step; }
  double last_epoch() const { return facts_.last_epoch; }
  /// Seconds of training up to the last record that has a time; without the time between sessions.
  double last_seconds() const { return facts_.last_seconds; }
  /// Whether all records have a time.
  bool is_timed() const { return facts_.is_timed && facts_.count > 0; }
  bool has_tokens() const { return facts_.has_tokens; }
  double evaluation_seconds() const { return facts_.evaluation_seconds; }
  double save_seconds() const { return facts_.save_seconds; }
  /// Sums over the records with a share of waiting for data.
  struct Shares {
    double wait = 0, copy = 0, reduce = 0, count = 0;
  };
  const Shares& shares() const { return facts_.shares; }
  /// Evaluations and long saves, the first hundred, in seconds.
  const std::vector<ChartBand>& bands() const { return bands_; }
  /// Values of a name in a split; empty if there are none.
  const ValueSeries& values(std::string_view split, std::string_view name) const;
  /// Names of the values of a split, in the order of their first record.
  std::vector<std::string> names(std::string_view split) const;
  const std::vector<ValueSeries>& lr() const { return lr_; }
  const std::vector<ValueSeries>& gpu_memory_bytes() const { return gpu_memory_bytes_; }
  const std::vector<ValueSeries>& gpu_utilisation() const { return gpu_utilisation_; }
  /// Training records that may be slow ones, in their order.
  const std::vector<StallCandidate>& candidates() const { return stalls_.candidates; }

 private:
  struct Named {
    std::string name;
    int role;
    ValueSeries values;
  };
  struct Split {
    std::vector<std::unique_ptr<Named>> values;
    std::map<std::string, Named*, std::less<>> by_name;
  };
  struct Measured;

  void add(const LogRecord& record);
  double elapsed_at(const LogRecord& record);
  static Named& named(Split& split, const std::string& name, size_t position);
  void add_stall_candidate(const LogRecord& record, double seconds, const Measured& measured);
  void drop_candidates();

  struct Facts {
    int64_t count = 0, last_step = 0;
    double last_epoch = 0, last_seconds = 0, evaluation_seconds = 0, save_seconds = 0;
    bool is_timed = true, has_tokens = false;
    Shares shares = {};
  };
  /// State of elapsed_at() between two records.
  struct Clock {
    double sum = 0, before = kNan;
    size_t session = SIZE_MAX;
  };
  struct Stalls {
    std::vector<StallCandidate> candidates = {};
    size_t session = 0;
    bool after_session = true, after_evaluation = false;
  };

  std::vector<SessionStartTime> sessions_;
  int64_t offset_ = 0;  // of the first line that has not been read
  std::string tail_;    // last bytes before it
  Facts facts_;
  Clock clock_;
  Stalls stalls_;
  std::vector<ChartBand> bands_;
  std::map<std::string, Split, std::less<>> splits_;
  std::vector<ValueSeries> lr_, gpu_memory_bytes_, gpu_utilisation_;
};

}  // namespace trainkit::detail
