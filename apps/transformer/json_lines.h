#pragma once
/// Reads one field of each line of a JSON-lines file.

#include <absl/status/status.h>

#include <functional>
#include <string>
#include <string_view>

namespace trainkit::transformer {

/// Calls `take` with the string in `field` of each line of `content`, in order. Skips blank lines. Errors (exit code 4,
/// data.jsonl) name `path` and the line: not a JSON object, no such field (the hint lists the fields), not a string, a
/// NUL character. An error of `take` ends the reading.
absl::Status for_each_json_line(const std::string& path, std::string_view content, const std::string& field,
                                const std::function<absl::Status(const std::string& text)>& take);

}  // namespace trainkit::transformer
