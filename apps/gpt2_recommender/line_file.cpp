#include "gpt2_recommender/line_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/core/utf8.h"
#include "trainkit/io/plain_text.h"

namespace trainkit::rec {
namespace {

constexpr size_t kLongestLine = size_t{64} << 10;

/// Position of a byte that no text has, text.size() if there is none. Those from 0x80 on are the encoding's business.
size_t find_control(std::string_view text) {
  const auto bad = std::find_if(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\t' && c != '\r' && c != '\n') || byte == 0x7f;
  });
  return static_cast<size_t>(bad - text.begin());
}

/// A carriage return that is not the end's.
bool has_inner_return(std::string_view line) {
  const size_t at = line.find('\r');
  return at != line.npos && at + 1 != line.size();
}

/// Walks the lines of `text`, which ends with one.
template <class Visit>
absl::Status walk(std::string_view text, Visit visit) {
  int64_t line = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view here = text.substr(0, end);
    text.remove_prefix(end + 1);
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

absl::StatusOr<LineFile> LineFile::open(const std::string& path, std::string kind) {
  TRAINKIT_ASSIGN_OR_RETURN(auto map, MappedFile::open(path));
  LineFile file(std::move(map), std::move(kind));
  TRAINKIT_ASSIGN_OR_RETURN(file.text_, plain_text(*file.file_, file.kind_));
  TRAINKIT_RETURN_IF_ERROR(file.check_lines());
  TRAINKIT_RETURN_IF_ERROR(file.file_->check());
  return file;
}

absl::Status LineFile::check_lines() {
  // One end of a line in every 64 KiB is all that the search for the next one may rely on.
  int64_t number = 0, utf8_line = 0, latin1_line = 0;
  for (std::string_view rest = text_; !rest.empty();) {
    ++number;
    const void* found = std::memchr(rest.data(), '\n', std::min(rest.size(), kLongestLine + 1));
    const std::string_view line = rest.substr(0, found ? static_cast<const char*>(found) - rest.data() : rest.size());
    if (!found && rest.size() > kLongestLine) return bad(number, "", "line too long", "", "at most 64 KiB");
    if (const size_t at = find_control(line); at < line.size() || has_inner_return(line)) {
      return bad(number, "", "a control character", at < line.size() ? line.substr(at, 1) : "\r", "text");
    }
    if (!found) {
      return bad(number, "", "the last line has no end: the file was cut", line.substr(0, 60), "a line end",
                 "if the file is whole, add one: echo >> FILE");
    }
    rest.remove_prefix(line.size() + 1);
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
               "another encoding than in line " + std::to_string(std::min(utf8_line, latin1_line)),
               utf8_line > latin1_line ? "UTF-8" : "Latin-1", "one encoding for the whole file");
  }
  latin1_ = latin1_line != 0;
  return absl::OkStatus();
}

absl::Status LineFile::for_each(const std::function<absl::Status(int64_t line, std::string_view text)>& visit) const {
  TRAINKIT_RETURN_IF_ERROR(walk(text_, visit));
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

bool parse_number(std::string_view text, int64_t& number) { return parse_whole(text, number); }

bool parse_number(std::string_view text, double& number) { return parse_whole(text, number) && std::isfinite(number); }

}  // namespace trainkit::rec
