#pragma once
/// Checks that a file is plain text.

#include <absl/status/statusor.h>

#include <string>
#include <string_view>

#include "trainkit/io/mapped_file.h"

namespace trainkit {

/// Returns the bytes of `file` without a byte order mark. Error "data.<kind>" with exit code 4 if the file is empty,
/// compressed with gzip, or UTF-16. Other encodings are not checked.
absl::StatusOr<std::string_view> plain_text(const MappedFile& file, const std::string& kind);

}  // namespace trainkit
