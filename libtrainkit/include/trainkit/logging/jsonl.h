#pragma once
/// metrics.jsonl: a run's numbers as one JSON object per line, for programs and for `jq`.

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "trainkit/logging/logger.h"

namespace trainkit {

/// Appends one line per record:
///
///   {"step":20,"epoch":0.25,"split":"train","loss":2.31,"grad_norm":0.71,"samples_per_second":812.4,
///    "data_wait_fraction":0.02,"lr":[0.001],"gpu_memory_bytes":[1073741824]}
///
/// step, epoch and split come first, then the record's values in their order, then lr, gpu_memory_bytes and
/// gpu_utilisation if there are any. Numbers are written in the fewest digits that read back to the same double. Not a
/// number and infinity, which JSON lacks, are the strings "NaN", "Infinity" and "-Infinity" (as in protobuf's JSON
/// mapping; float() in Python and Number() in JavaScript read them). A value named like one of the six fixed fields
/// gets a "_" behind its name; of two values of one name the first counts.
///
/// Each line is one write to a file opened with O_APPEND, so a kill leaves whole lines, but for a power cut; flush()
/// also synchronises the file with the disk (fdatasync). A full disk (exit code 6) leaves no half line, and what it
/// refused is written once there is room again.
class JsonlLogger final : public Logger {
 public:
  /// Appends to `path`, creating it if need be. Exit code 6 if it cannot be written to.
  static absl::StatusOr<std::unique_ptr<JsonlLogger>> open(const std::string& path);
  ~JsonlLogger() override;

  void log(const LogRecord& record) override;
  absl::Status flush() override;
  /// Cuts the file before the first line that is torn or of a later step. rewind(-1) empties it.
  absl::Status rewind(int64_t step) override;

 private:
  class Impl;
  explicit JsonlLogger(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// The line of a record, without its line end.
std::string to_json(const LogRecord& record);

/// The records of a metrics.jsonl, in order, up to the first line that is torn or not a record. Fields that are neither
/// numbers nor known are left out. kNotFound if there is no such file, else exit code 6.
absl::StatusOr<std::vector<LogRecord>> read_jsonl(const std::string& path);

}  // namespace trainkit
