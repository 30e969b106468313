#include <algorithm>

#include "io/tables/table_rows.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

/// Splits lines at separators. Lines with quotes are copied, because their fields may continue on the next line.
class SeparatedRows final : public detail::TableRows {
 public:
  SeparatedRows(const TextFile& file, const TableOptions& options)
      : TableRows(file, options), separator_(options.separator), quotes_(options.quotes) {}

  absl::StatusOr<bool> next() override {
    fields_.clear();
    TRAINKIT_ASSIGN_OR_RETURN(const auto line, next_line());
    if (!line) return false;
    if (quotes_ && line->find('"') != line->npos) {
      TRAINKIT_RETURN_IF_ERROR(split_quoted(*line));
      return true;
    }
    source_ = without_line_end(*line);
    if (source_.find('\r') != source_.npos) return lone_return("");
    split_fields(source_, separator_, fields_);
    return true;
  }

 private:
  /// A field as a part of row_.
  struct Span {
    size_t begin, size;
    bool has_doubled_quotes;
  };

  /// Makes the error for a carriage return after `before` in the row.
  absl::Status lone_return(std::string_view before) const {
    const auto line = line_ + std::count(before.begin(), before.end(), '\n');
    return file_.bad(line, "", "a carriage return without a line feed", "\r", "line ends of LF or CRLF");
  }

  absl::Status split_quoted(std::string_view line) {
    row_ = line;
    spans_.clear();
    for (size_t at = 0;;) {
      if (row_.compare(at, 1, "\"") == 0) {
        TRAINKIT_RETURN_IF_ERROR(take_quoted(at));
      } else {
        const size_t end = std::min(row_.find(separator_, at), end_of_row(at));
        spans_.push_back({at, end - at, false});
        at = end;
      }
      const size_t end = end_of_row(at);
      if (at == end) break;
      if (row_.compare(at, separator_.size(), separator_) != 0) {
        return bad("text after a closing quote", std::string_view(row_).substr(at, std::min<size_t>(end - at, 60)),
                   "a separator");
      }
      at += separator_.size();
    }
    return take_spans();
  }

  /// Returns the end of the line that begins before `at`, without its line end.
  size_t end_of_row(size_t at) const {
    const size_t end = std::min(row_.find('\n', at), row_.size());
    return end > at && row_[end - 1] == '\r' ? end - 1 : end;
  }

  /// Takes the field whose opening quote is at `at`, over as many lines as it has, and moves `at` behind its end.
  absl::Status take_quoted(size_t& at) {
    Span field{at + 1, 0, false};
    for (size_t from = field.begin;;) {
      const size_t quote = row_.find('"', from);
      if (quote == row_.npos) {
        from = row_.size();
        TRAINKIT_RETURN_IF_ERROR(append_line());
      } else if (row_.compare(quote + 1, 1, "\"") == 0) {
        field.has_doubled_quotes = true;
        from = quote + 2;
      } else {
        field.size = quote - field.begin;
        spans_.push_back(field);
        at = quote + 1;
        return absl::OkStatus();
      }
    }
  }

  absl::Status append_line() {
    TRAINKIT_ASSIGN_OR_RETURN(const auto line, lines_.next());
    if (!line) return bad("a quote that is never closed: the file was cut, or a quote is missing");
    row_ += file_.is_latin1() ? file_.to_utf8(*line) : *line;
    if (row_.size() <= max_row_bytes_) return absl::OkStatus();
    return bad("row too long", "", "at most " + std::to_string(max_row_bytes_) + " bytes",
               "a quote may be missing in this row");
  }

  absl::Status take_spans() {
    texts_.clear();
    source_ = row_;
    for (const Span& span : spans_) {
      const std::string_view text = source_.substr(span.begin, span.size);
      const bool is_quoted = span.begin > 0 && row_[span.begin - 1] == '"';
      if (!is_quoted && text.find('\r') != text.npos) return lone_return(source_.substr(0, span.begin));
      if (!span.has_doubled_quotes) {
        fields_.push_back(text);
        continue;
      }
      std::string& single = texts_.emplace_back();
      for (size_t i = 0; i < text.size(); ++i) {
        single += text[i];
        if (text[i] == '"') ++i;  // the second of two
      }
      fields_.push_back(single);
    }
    return absl::OkStatus();
  }

  std::string separator_;
  bool quotes_;
  std::string row_;
  std::vector<Span> spans_;
};

}  // namespace

std::unique_ptr<detail::TableRows> detail::separated_rows(const TextFile& file, const TableOptions& options) {
  return std::make_unique<SeparatedRows>(file, options);
}

}  // namespace trainkit
