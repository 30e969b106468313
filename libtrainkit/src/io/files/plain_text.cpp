#include "io/files/plain_text.h"

#include "trainkit/core/error.h"

namespace trainkit {

absl::StatusOr<std::string_view> plain_text(const MappedFile& file, const std::string& kind) {
  std::string_view text = file.text();
  Error error = {.exit_code = ExitCode::kData, .id = "data." + kind, .where = file.path()};
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  if (text.empty()) {
    error.problem = "empty file";
    error.expected = "lines of text";
  } else if (text.starts_with("\x1f\x8b")) {
    error.problem = "compressed";
    error.got = "gzip";
    error.expected = "text";
    error.hint = "unpack it first: gunzip";
  } else if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) {
    error.problem = "not in a known encoding";
    error.got = "UTF-16";
    error.expected = "UTF-8";
    error.hint = "convert it: iconv -f UTF-16 -t UTF-8";
  } else {
    return text;
  }
  return to_status(error);
}

}  // namespace trainkit
