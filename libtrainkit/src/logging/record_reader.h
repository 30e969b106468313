#pragma once
/// Reads the records of a metrics.jsonl one at a time, from any line on.

#include <absl/status/statusor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "trainkit/core/fs.h"
#include "trainkit/logging/logger.h"

namespace trainkit::detail {

/// Parses a line without its end. nullopt if it is not a record.
std::optional<LogRecord> parse_record(std::string_view line);

/// Calls `each` with every record from the line at `begin` on, until `each` returns false or a line is torn or not a
/// record. Returns the offset of that line. Reads 1 MiB at a time.
absl::StatusOr<int64_t> read_records(const ReadableFile& file, int64_t begin, c10::function_ref<bool(LogRecord&)> each);

/// As read_records(), for the end of the file: begins at a line whose record `is_early` accepts, or at the first line,
/// and reads little more than the bytes from there on. Damage before that line stays unnoticed.
absl::StatusOr<int64_t> read_last_records(const ReadableFile& file, c10::function_ref<bool(const LogRecord&)> is_early,
                                          c10::function_ref<bool(LogRecord&)> each);

/// Returns the last record of a split; nullopt if there is none. Errors: as read_jsonl().
absl::StatusOr<std::optional<LogRecord>> last_record(const std::string& path, std::string_view split);

}  // namespace trainkit::detail
