#pragma once
/// The text of a file, if it is text at all.

#include <absl/status/statusor.h>

#include <string>
#include <string_view>

#include "trainkit/io/mapped_file.h"

namespace trainkit {

/// The bytes of `file` without a byte order mark. An error "data.<kind>" of exit code 4 for a file that is empty,
/// compressed by gzip, or UTF-16; the rest is not looked at.
absl::StatusOr<std::string_view> plain_text(const MappedFile& file, const std::string& kind);

}  // namespace trainkit
