#include "trainkit/io/csv.h"

#include <csv.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "core/base/utf8.h"
#include "io/files/plain_text.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/io/mapped_file.h"

namespace trainkit {
namespace {

absl::Status bad_line(const std::string& path, int64_t line, const std::string& problem, std::string_view got = {},
                      const std::string& expected = "", const std::string& hint = "") {
  return to_status({.exit_code = ExitCode::kData,
                    .id = "data.csv",
                    .where = line > 0 ? fmt::format("{}:{}", path, line) : path,
                    .problem = problem,
                    .got = std::string(got),
                    .expected = expected,
                    .hint = hint});
}

/// Whether `text`, a line, has a carriage return outside quotes that does not end it. `quoted`: a quoted field
/// continues from the line before.
bool has_lone_return(std::string_view text, bool quoted) {
  const auto ends_line = [&](size_t at) { return text.substr(at) == "\r\n" || text.substr(at) == "\r"; };
  const size_t first = text.find('\r');
  if (first == text.npos || ends_line(first)) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (text[i] == '\r' && !quoted && !ends_line(i)) return true;
  }
  return false;
}

absl::Status check_text(const std::string& path, int64_t line, std::string_view text, bool quoted) {
  if (text.find('\0') != text.npos) return bad_line(path, line, "a NUL byte", "", "text");
  if (const size_t at = find_invalid_utf8(text); at < text.size()) {
    return bad_line(path, line, "not UTF-8", text.substr(at, 1), "UTF-8", "convert it: iconv -f CP1252 -t UTF-8");
  }
  if (has_lone_return(text, quoted)) {
    return bad_line(path, line, "a carriage return without a line feed", "\r", "line ends of LF or CRLF");
  }
  return absl::OkStatus();
}

}  // namespace

/// Builds a CsvFile from libcsv's callbacks.
///
/// Passes the text to libcsv line by line, because libcsv does not report line numbers. `row_open_` is true while a
/// quoted field continues on the next line; row_line_ then stays at the first line of the row. Checking each line
/// against max_row_bytes before parsing limits the memory for a file without line ends or with an unclosed quote.
class CsvParser {
 public:
  CsvParser(CsvFile& file, const CsvOptions& options) : file_(file), options_(options) {
    if (csv_init(&parser_, CSV_STRICT | CSV_STRICT_FINI) != 0) throw std::bad_alloc();
    csv_set_delim(&parser_, static_cast<unsigned char>(options.delimiter));
    csv_set_space_func(&parser_, [](unsigned char) { return 0; });  // blanks are part of their field
  }
  ~CsvParser() { csv_free(&parser_); }
  CsvParser(const CsvParser&) = delete;
  CsvParser& operator=(const CsvParser&) = delete;

  absl::Status operator()(std::string_view text) {
    const auto limit = static_cast<size_t>(options_.max_row_bytes);
    int64_t line = 0;
    size_t row_bytes = 0;
    while (!text.empty()) {
      const void* end = std::memchr(text.data(), '\n', std::min(text.size(), limit + 1));
      const size_t size = end ? static_cast<const char*>(end) - text.data() + 1 : text.size();
      ++line;
      row_bytes = row_open_ ? row_bytes + size : size;
      if (!row_open_) row_line_ = line;
      if (row_bytes > limit) return bad_line(file_.path_, row_line_, "row too long", "", format_limit());
      TRAINKIT_RETURN_IF_ERROR(parse_line(line, text.substr(0, size)));
      text.remove_prefix(size);
    }
    if (csv_fini(&parser_, &end_field, &end_row, this) != 0) {
      return bad_line(file_.path_, row_line_, "a quote that is never closed: the file was cut, or a quote is missing");
    }
    TRAINKIT_RETURN_IF_ERROR(status_);
    if (file_.columns_.empty()) return bad_line(file_.path_, 0, "no header", "", "a line with the columns' names");
    if (file_.lines_.empty()) return bad_line(file_.path_, 0, "no rows after the header", "0 rows", "at least 1 row");
    return absl::OkStatus();
  }

 private:
  std::string format_limit() const { return fmt::format("at most {} bytes", options_.max_row_bytes); }

  absl::Status parse_line(int64_t line, std::string_view text) {
    const bool empty = text == "\n" || text == "\r\n";
    if (empty && !row_open_) return absl::OkStatus();
    TRAINKIT_RETURN_IF_ERROR(check_text(file_.path_, line, text, row_open_));
    if (!row_open_) row_is_quoted_ = text.starts_with('"');
    row_open_ = true;
    if (csv_parse(&parser_, text.data(), text.size(), &end_field, &end_row, this) != text.size()) {
      return bad_line(file_.path_, line, "a quote inside a field that does not begin with one, or text after its end",
                      "", "\"...\" around the whole field, with \"\" for a quote");
    }
    return status_;
  }

  static void end_field(void* data, size_t size, void* self) {
    auto& parser = *static_cast<CsvParser*>(self);
    parser.file_.text_.append(static_cast<const char*>(data), size);
    parser.file_.ends_.push_back(parser.file_.text_.size());
    ++parser.fields_;
  }

  static void end_row(int, void* self) {
    auto& parser = *static_cast<CsvParser*>(self);
    if (parser.status_.ok()) parser.status_ = parser.file_.columns_.empty() ? parser.take_header() : parser.take_row();
    parser.fields_ = 0;
    parser.row_open_ = false;
  }

  absl::Status take_header() {
    size_t begin = 0;
    for (const size_t end : file_.ends_) {
      std::string name = file_.text_.substr(begin, end - begin);
      begin = end;
      if (file_.contains(name)) return bad_line(file_.path_, row_line_, "duplicate column name", name);
      file_.columns_.push_back(std::move(name));
    }
    file_.text_.clear();
    file_.ends_.clear();
    const std::string& first = file_.columns_.front();
    const size_t other = first.find_first_of(";\t,");
    if (file_.columns_.size() == 1 && !row_is_quoted_ && other != first.npos) {
      return bad_line(file_.path_, row_line_, "unexpected delimiter", first.substr(other, 1),
                      std::string(1, options_.delimiter));
    }
    return absl::OkStatus();
  }

  absl::Status take_row() {
    if (fields_ != file_.columns_.size()) {
      return bad_line(file_.path_, row_line_, "the number of fields differs from the header", std::to_string(fields_),
                      std::to_string(file_.columns_.size()));
    }
    file_.lines_.push_back(row_line_);
    return absl::OkStatus();
  }

  CsvFile& file_;
  const CsvOptions& options_;
  csv_parser parser_;
  absl::Status status_;
  size_t fields_ = 0;  // fields of the current row
  bool row_open_ = false;
  bool row_is_quoted_ = false;  // the first field of the row
  int64_t row_line_ = 0;
};

absl::StatusOr<CsvFile> CsvFile::open(const std::string& path, const CsvOptions& options) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto map, MappedFile::open(path));
  TRAINKIT_ASSIGN_OR_RETURN(const std::string_view text, plain_text(*map, "csv"));
  CsvFile file(path);
  TRAINKIT_RETURN_IF_ERROR(CsvParser(file, options)(text));
  TRAINKIT_RETURN_IF_ERROR(map->check());
  return file;
}

bool CsvFile::contains(std::string_view name) const {
  return std::find(columns_.begin(), columns_.end(), name) != columns_.end();
}

absl::StatusOr<int64_t> CsvFile::column(std::string_view name) const {
  const auto found = std::find(columns_.begin(), columns_.end(), name);
  if (found != columns_.end()) return found - columns_.begin();
  const std::string nearest = nearest_name(name, columns_);
  return to_status({.exit_code = ExitCode::kData,
                    .id = "data.csv",
                    .where = path_,
                    .field = std::string(name),
                    .problem = "no such column",
                    .expected = fmt::format("one of {}", fmt::join(columns_, ", ")),
                    .hint = nearest.empty() ? "" : fmt::format("did you mean '{}'?", nearest)});
}

std::string_view CsvFile::at(int64_t row, int64_t column) const {
  const size_t i = static_cast<size_t>(row) * columns_.size() + static_cast<size_t>(column);
  const size_t begin = i == 0 ? 0 : ends_[i - 1];
  return std::string_view(text_).substr(begin, ends_[i] - begin);
}

absl::StatusOr<int64_t> CsvFile::integer(int64_t row, int64_t column) const {
  const std::string_view field = at(row, column);
  int64_t number = 0;
  const auto [stopped, error] = std::from_chars(field.data(), field.data() + field.size(), number);
  if (error == std::errc::result_out_of_range) return bad(row, column, "out of range", "a 64-bit integer");
  if (error != std::errc() || stopped != field.data() + field.size()) {
    return bad(row, column, "not a whole number", "digits");
  }
  return number;
}

absl::Status CsvFile::bad(int64_t row, int64_t column, const std::string& problem, const std::string& expected,
                          const std::string& hint) const {
  return to_status({.exit_code = ExitCode::kData,
                    .id = "data.csv",
                    .where = fmt::format("{}:{}", path_, line(row)),
                    .field = columns_[static_cast<size_t>(column)],
                    .problem = problem,
                    .got = std::string(at(row, column)),
                    .expected = expected,
                    .hint = hint});
}

std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace trainkit
