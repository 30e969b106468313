#include "gpt2_recommender/line_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "core/base/utf8.h"
#include "io/files/plain_text.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::rec {
namespace {

// Note [Checks of a text file]
//
// The file comes from outside: it may be binary, truncated, without line ends, or change while it is mapped.
// check_lines() reads it once. Afterwards for_each_line() relies on these facts:
//
// 1. Every line ends with '\n': a file that is cut off inside a line is an error. A table of the user's own may lack
//    the last line end (may_end_open).
// 2. No line is longer than kLongestLine. The search for '\n' stops there; a large file without line ends costs 64 KiB,
//    not a scan of the file for each error text.
// 3. There are no control bytes except tab and a CR before LF, so that values in messages and logs are harmless.
// 4. The file has one encoding. A line that is not valid UTF-8 makes it Latin-1; a line with valid multi-byte UTF-8 in
//    the same file is an error, since its bytes would be read as other letters. The bytes 0x80 to 0x9f are no letters
//    in Latin-1: they suggest CP1252.
//
// A file that shrinks while mapped is reported by MappedFile::check(), which open() and for_each() call at the end.
constexpr size_t kLongestLine = size_t{64} << 10;

/// Returns the position of the first control byte; text.size() if there is none. Bytes from 0x80 on depend on the
/// encoding and are checked elsewhere.
size_t find_control(std::string_view text) {
  const auto bad = std::find_if(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\t' && c != '\r' && c != '\n') || byte == 0x7f;
  });
  return static_cast<size_t>(bad - text.begin());
}

/// Returns whether the line has a carriage return before its last byte.
bool has_inner_return(std::string_view line) {
  const size_t at = line.find('\r');
  return at != line.npos && at + 1 != line.size();
}

/// Calls `visit` for each line of `text`. See Note [Checks of a text file].
template <class Visit>
absl::Status for_each_line(std::string_view text, Visit visit) {
  int64_t line = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view here = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (here.ends_with('\r')) here.remove_suffix(1);
    TRAINKIT_RETURN_IF_ERROR(visit(++line, here));
  }
  return absl::OkStatus();
}

template <class Number>
bool parse_whole(std::string_view text, Number& number) {
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stopped == end;
}

}  // namespace

absl::StatusOr<LineFile> LineFile::open(const std::string& path, std::string kind, bool may_end_open) {
  TRAINKIT_ASSIGN_OR_RETURN(auto map, MappedFile::open(path));
  LineFile file(std::move(map), std::move(kind));
  TRAINKIT_ASSIGN_OR_RETURN(file.text_, plain_text(*file.file_, file.kind_));
  TRAINKIT_RETURN_IF_ERROR(file.check_lines(may_end_open));
  TRAINKIT_RETURN_IF_ERROR(file.file_->check());
  return file;
}

absl::Status LineFile::check_lines(bool may_end_open) {
  // See Note [Checks of a text file].
  int64_t number = 0, utf8_line = 0, latin1_line = 0;
  for (std::string_view rest = text_; !rest.empty();) {
    ++number;
    const void* found = std::memchr(rest.data(), '\n', std::min(rest.size(), kLongestLine + 1));
    const std::string_view line = rest.substr(0, found ? static_cast<const char*>(found) - rest.data() : rest.size());
    if (!found && rest.size() > kLongestLine) return bad(number, "", "line too long", "", "at most 64 KiB");
    if (const size_t at = find_control(line); at < line.size() || has_inner_return(line)) {
      return bad(number, "", "control character", at < line.size() ? line.substr(at, 1) : "\r", "text");
    }
    if (!found && !may_end_open) {
      return bad(number, "", "the last line has no line end: the file may be truncated", line.substr(0, 60),
                 "a line end", "if the file is complete, add a line end: echo >> FILE");
    }
    rest.remove_prefix(line.size() + (found ? 1 : 0));
    const bool ascii = std::none_of(line.begin(), line.end(), [](char c) { return c & 0x80; });
    if (ascii) continue;
    int64_t& first = find_invalid_utf8(line) == line.size() ? utf8_line : latin1_line;
    if (first == 0) first = number;
    const auto c1 =
        std::find_if(line.begin(), line.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xe0) == 0x80; });
    if (&first == &latin1_line && c1 != line.end()) {
      return bad(number, "", "neither UTF-8 nor Latin-1", std::string_view(&*c1, 1), "one of the two",
                 "convert it: iconv -f CP1252 -t UTF-8");
    }
  }
  if (utf8_line != 0 && latin1_line != 0) {
    return bad(std::max(utf8_line, latin1_line), "",
               "encoding differs from line " + std::to_string(std::min(utf8_line, latin1_line)),
               utf8_line > latin1_line ? "UTF-8" : "Latin-1", "one encoding for the whole file");
  }
  latin1_ = latin1_line != 0;
  return absl::OkStatus();
}

absl::Status LineFile::for_each(const std::function<absl::Status(int64_t line, std::string_view text)>& visit) const {
  TRAINKIT_RETURN_IF_ERROR(for_each_line(text_, visit));
  return file_->check();
}

std::string LineFile::to_utf8(std::string_view text) const {
  if (!latin1_) return std::string(text);
  std::string converted;
  for (const char c : text) append_utf8(converted, static_cast<unsigned char>(c));
  return converted;
}

absl::Status LineFile::bad(int64_t line, const std::string& field, const std::string& problem, std::string_view got,
                           const std::string& expected, const std::string& hint) const {
  return to_status({.exit_code = ExitCode::kData,
                    .id = "data." + kind_,
                    .where = line > 0 ? path() + ":" + std::to_string(line) : path(),
                    .field = field,
                    .problem = problem,
                    .got = std::string(got),
                    .expected = expected,
                    .hint = hint});
}

void split_fields(std::string_view text, std::string_view separator, std::vector<std::string_view>& fields) {
  fields.clear();
  for (size_t end = text.find(separator); end != text.npos; end = text.find(separator)) {
    fields.push_back(text.substr(0, end));
    text.remove_prefix(end + separator.size());
  }
  fields.push_back(text);
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

bool parse_number(std::string_view text, int64_t& number) { return parse_whole(text, number); }

bool parse_number(std::string_view text, double& number) { return parse_whole(text, number) && std::isfinite(number); }

}  // namespace trainkit::rec
