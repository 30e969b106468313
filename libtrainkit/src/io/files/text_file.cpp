#include "trainkit/io/text_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <span>

#include "core/base/utf8.h"
#include "io/files/inflate.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/status.h"
#include "trainkit/core/vectorized.h"

namespace trainkit {
namespace {

// Note [Checks of a text file]
//
// The file comes from outside: it may be binary, truncated, without line ends, or change while it is mapped.
// TextFile::open reads it once. Afterwards its readers rely on these facts:
//
// 1. No line is longer than TextOptions::max_line_bytes. The search for '\n' stops there; a large file without line
//    ends costs this much, not a scan of the file. A packed file that unpacks to a huge line ends there too.
// 2. There is no NUL byte. Without TextOptions::control_characters there are no control bytes except tab and a CR
//    before LF, so that values in messages and logs are harmless.
// 3. Without TextOptions::may_end_open every line ends with '\n'.
// 4. The file has one encoding. With TextOptions::latin1 a line that is not valid UTF-8 makes it Latin-1; a line with
//    valid multi-byte UTF-8 in the same file is an error, since its bytes would be read as other letters. The bytes
//    0x80 to 0x9f are no letters in Latin-1: they suggest CP1252.
//
// Most texts are printable ASCII, which no rule refuses. check_lines() skips such lines by blocks of 64 KiB, without a
// look at each line.
//
// A file that shrinks while mapped is reported by MappedFile::check() at the end of each reading.

constexpr std::string_view kGzip = "\x1f\x8b";

/// What a file is that begins with these bytes, if it is no text, and how to make it one.
struct OtherFormat {
  std::string_view begin;
  const char* name;
  const char* hint;
};
constexpr OtherFormat kOtherFormats[] = {
    {"\xff\xfe", "UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"},
    {"\xfe\xff", "UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"},
    {"PAR1", "a Parquet table", "convert it: pandas.read_parquet(FILE).to_csv(\"FILE.csv\", index=False)"},
    {"PK\x03\x04", "a zip archive or an Excel table", "unpack it, or save the table as csv"},
    {"(\xb5/\xfd", "zstd", "unpack it first: unzstd"},
    {"BZh", "bzip2", "unpack it first: bunzip2"},
    {"\xfd"
     "7zXZ",
     "xz", "unpack it first: unxz"},
};

/// Returns the position of the first control byte; text.size() if there is none. Bytes from 0x80 on depend on the
/// encoding and are checked elsewhere.
size_t find_control(std::string_view text, bool allowed) {
  const auto bad = std::find_if(text.begin(), text.end(), [&](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return allowed ? byte == 0 : (byte < 0x20 && c != '\t' && c != '\r' && c != '\n') || byte == 0x7f;
  });
  return static_cast<size_t>(bad - text.begin());
}

constexpr size_t kPlainBlock = size_t{64} << 10;
constexpr size_t kPlainChunk = 64;

/// Returns the length of a part at the front of `text` that has printable ASCII, tabs and line feeds alone: whole
/// chunks.
TRAINKIT_VECTORIZED size_t plain_front(const char* text, size_t size) {
  size_t at = 0;
  for (; at + kPlainChunk <= size; at += kPlainChunk) {
    int others = 0;  // without an early exit, so that it vectorises
    for (size_t i = at; i < at + kPlainChunk; ++i) {
      const auto byte = static_cast<signed char>(text[i]);  // below 0 from 0x80 on
      others |= (byte < 0x20 && byte != '\t' && byte != '\n') || byte == 0x7f;
    }
    if (others) break;
  }
  return at;
}

TRAINKIT_VECTORIZED int64_t count_line_feeds(const char* text, size_t size) {
  int64_t count = 0;
  for (size_t i = 0; i < size; ++i) count += text[i] == '\n';
  return count;
}

bool is_ascii(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return c & 0x80; });
}

template <class Number>
bool parse_whole(std::string_view text, Number& number) {
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stopped == end;
}

}  // namespace

TextLines::TextLines(std::shared_ptr<const MappedFile> file, const TextOptions& options)
    : file_(std::move(file)), kind_(options.kind), max_line_bytes_(static_cast<size_t>(options.max_line_bytes)) {
  if (!file_->text().starts_with(kGzip)) return;
  inflater_ = std::make_unique<detail::Inflater>(std::as_bytes(std::span(file_->text())), detail::Packing::kGzip);
  unpacked_.resize(size_t{256} << 10);
}
TextLines::TextLines(TextLines&&) noexcept = default;
TextLines::~TextLines() = default;

absl::Status TextLines::next_piece() {
  const bool is_first = !std::exchange(begun_, true);
  if (inflater_) {
    const auto size = inflater_->read(unpacked_.data(), unpacked_.size());
    if (!size.ok()) {
      TRAINKIT_RETURN_IF_ERROR(file_->check());
      const auto at = static_cast<int64_t>(file_->text().size() - inflater_->left().size());
      return data_error("data.damaged", {.file = file_->path(), .offset = at}, std::string(size.status().message()), "",
                        "", "test it with: gzip -t");
    }
    rest_ = {unpacked_.data(), *size};
  } else if (is_first) {
    rest_ = file_->text();
  }
  if (is_first && rest_.starts_with("\xef\xbb\xbf")) rest_.remove_prefix(3);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string_view>> TextLines::next() {
  line_.clear();
  while (true) {
    if (rest_.empty()) TRAINKIT_RETURN_IF_ERROR(next_piece());
    if (rest_.empty()) return last_line();
    const size_t allowed = max_line_bytes_ + 1 - line_.size();
    const void* end = std::memchr(rest_.data(), '\n', std::min(rest_.size(), allowed));
    if (!end && rest_.size() >= allowed) {
      return data_error("data." + kind_, {.file = file_->path(), .line = number_ + 1}, "line too long", "",
                        "at most " + std::to_string(max_line_bytes_) + " bytes");
    }
    const size_t size = end ? static_cast<const char*>(end) - rest_.data() + 1 : rest_.size();
    const std::string_view piece = rest_.substr(0, size);
    rest_.remove_prefix(size);
    if (end && line_.empty()) return ++number_, piece;
    line_ += piece;
    if (end) return ++number_, line_;
  }
}

void TextLines::skip_plain_lines() {
  while (true) {
    const size_t plain = plain_front(rest_.data(), std::min({rest_.size(), kPlainBlock, max_line_bytes_}));
    const size_t end = rest_.substr(0, plain).rfind('\n');
    if (end == rest_.npos) return;
    number_ += count_line_feeds(rest_.data(), end + 1);
    rest_.remove_prefix(end + 1);
  }
}

absl::StatusOr<std::optional<std::string_view>> TextLines::last_line() {
  if (!line_.empty()) return ++number_, line_;
  TRAINKIT_RETURN_IF_ERROR(file_->check());
  return std::nullopt;
}

absl::StatusOr<TextFile> TextFile::open(const std::string& path, const TextOptions& options) {
  TRAINKIT_ASSIGN_OR_RETURN(auto map, MappedFile::open(path));
  TextFile file(std::move(map), options);
  for (const OtherFormat& other : kOtherFormats) {
    if (!file.file_->text().starts_with(other.begin)) continue;
    return file.bad(0, "", "not a text that can be read", other.name, "UTF-8, plain or packed with gzip", other.hint);
  }
  TRAINKIT_RETURN_IF_ERROR(file.check_lines());
  return file;
}

bool TextFile::is_packed() const { return file_->text().starts_with(kGzip); }

absl::Status TextFile::check_lines() {
  // See Note [Checks of a text file].
  int64_t utf8_line = 0, latin1_line = 0;
  TextLines all = lines();
  while (true) {
    all.skip_plain_lines();
    TRAINKIT_ASSIGN_OR_RETURN(const auto found, all.next());
    const int64_t number = all.number();
    if (!found) {
      if (number == 0) return bad(0, "", "empty file", "", "lines of text");
      break;
    }
    const std::string_view line = without_line_end(*found);
    if (const size_t at = find_control(line, options_.control_characters); at < line.size()) {
      if (line[at] == '\0') return bad(number, "", "a NUL byte", "", "text");
      return bad(number, "", "control character", line.substr(at, 1), "text");
    }
    if (!options_.control_characters && line.find('\r') != line.npos) {
      return bad(number, "", "a carriage return without a line feed", "\r", "line ends of LF or CRLF");
    }
    if (!options_.may_end_open && !found->ends_with('\n')) {
      return bad(number, "", "the last line has no line end: the file may be truncated", line.substr(0, 60),
                 "a line end", "if the file is complete, add a line end: echo >> FILE");
    }
    if (is_ascii(line)) continue;
    const size_t invalid = find_invalid_utf8(line);
    if (invalid < line.size() && !options_.latin1) {
      return bad(number, "", "not UTF-8", line.substr(invalid, 1), "UTF-8", "convert it: iconv -f CP1252 -t UTF-8");
    }
    int64_t& first = invalid == line.size() ? utf8_line : latin1_line;
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

absl::Status TextFile::for_each_line(absl::FunctionRef<absl::Status(int64_t line, std::string_view text)> visit) const {
  TextLines all = lines();
  while (true) {
    TRAINKIT_ASSIGN_OR_RETURN(const auto line, all.next());
    if (!line) return absl::OkStatus();
    TRAINKIT_RETURN_IF_ERROR(visit(all.number(), without_line_end(*line)));
  }
}

std::string TextFile::to_utf8(std::string_view text) const {
  if (!latin1_) return std::string(text);
  std::string converted;
  for (const char c : text) append_utf8(converted, static_cast<unsigned char>(c));
  return converted;
}

absl::Status TextFile::bad(int64_t line, const std::string& field, const std::string& problem, std::string_view got,
                           const std::string& expected, const std::string& hint) const {
  return data_error("data." + options_.kind, {.file = path(), .line = line, .field = field}, problem, got, expected,
                    hint);
}

std::string_view without_line_end(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

bool parse_number(std::string_view text, int64_t& number) { return parse_whole(text, number); }

bool parse_number(std::string_view text, double& number) { return parse_whole(text, number) && std::isfinite(number); }

}  // namespace trainkit
