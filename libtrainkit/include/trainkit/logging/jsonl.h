#pragma once
/// Writes and reads metrics.jsonl: the metrics of a run, one JSON object per line.

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
/// Order: step, epoch, split, the record's values in their order, then lr, gpu_memory_bytes and gpu_utilisation if
/// present. Numbers have the fewest digits that read back to the same double.
///
/// JSON has no NaN and no infinity: they are the strings "NaN", "Infinity" and "-Infinity", as in protobuf's JSON
/// mapping. Python's float() and JavaScript's Number() read them. A value named like one of the six fixed fields gets
/// the suffix "_". If two values have the same name, the first is written.
///
/// Each line is one write to a file opened with O_APPEND, so a killed process leaves whole lines. A power cut can tear
/// the last one. flush() also synchronises the file with the disk (fdatasync). A full disk (exit code 6) leaves no
/// partial line. The refused lines are written as soon as there is space again.
class JsonlLogger final : public Logger {
 public:
  /// Opens `path` for appending and creates it if necessary. Exit code 6 if it is not writable.
  static absl::StatusOr<std::unique_ptr<JsonlLogger>> open(const std::string& path);
  ~JsonlLogger() override;

  void log(const LogRecord& record) override;
  absl::Status flush() override;
  /// Truncates the file before the first line that is torn or belongs to a step after `step`. rewind(-1) empties it.
  absl::Status rewind(int64_t step) override;

 private:
  class Impl;
  explicit JsonlLogger(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Returns the JSON line of a record, without the line end.
std::string to_json(const LogRecord& record);

/// Reads the records of a metrics.jsonl in order, up to the first line that is torn or not a record. Skips unknown
/// fields that are not numbers. kNotFound if the file does not exist; exit code 6 for other errors.
absl::StatusOr<std::vector<LogRecord>> read_jsonl(const std::string& path);

}  // namespace trainkit
