#include "logging/plain_table.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <vector>

namespace trainkit::detail {
namespace {

using Row = std::vector<std::string>;

/// Number of characters of UTF-8 text.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](unsigned char c) { return (c & 0xc0) != 0x80; }));
}

bool is_row(const std::string& line) { return line.size() > 1 && line.front() == '|' && line.back() == '|'; }

bool is_rule(const std::string& line) {
  return is_row(line) && line.find_first_not_of("|-: ") == std::string::npos && line.find('-') != std::string::npos;
}

Row cells_of(const std::string& line) {
  Row cells;
  for (const absl::string_view cell : absl::StrSplit(absl::string_view(line).substr(1, line.size() - 2), '|')) {
    cells.emplace_back(absl::StripAsciiWhitespace(cell));
  }
  return cells;
}

/// Whether `cell` starts like a number, or is empty.
bool is_number(const std::string& cell) {
  return cell.empty() || cell == "-" || cell == "nan" || (cell[0] >= '0' && cell[0] <= '9') ||
         (cell.size() > 1 && (cell[0] == '-' || cell[0] == '+' || cell[0] == '.') && cell[1] >= '0' && cell[1] <= '9');
}

std::string columns(const std::vector<Row>& rows) {
  std::string out;
  std::vector<size_t> widths(rows.front().size(), 0);
  std::vector<bool> right(widths.size(), true);
  for (const Row& row : rows) {
    for (size_t i = 0; i < std::min(row.size(), widths.size()); ++i) {
      widths[i] = std::max(widths[i], width_of(row[i]));
      right[i] = right[i] && i > 0 && (&row == &rows.front() || is_number(row[i]));
    }
  }
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < std::min(row.size(), widths.size()); ++i) {
      const std::string space(widths[i] - width_of(row[i]), ' ');
      line += (i == 0 ? "" : "  ") + (right[i] ? space + row[i] : row[i] + space);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

}  // namespace

std::string align_tables(std::string_view text) {
  std::string out;
  const std::vector<std::string> lines = absl::StrSplit(absl::string_view(text.data(), text.size()), '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i + 1 < lines.size() && is_row(lines[i]) && is_rule(lines[i + 1])) {
      std::vector<Row> rows = {cells_of(lines[i])};
      for (i += 2; i < lines.size() && is_row(lines[i]); ++i) rows.push_back(cells_of(lines[i]));
      out += columns(rows);
      --i;
      continue;
    }
    out += lines[i];
    if (i + 1 < lines.size()) out += '\n';
  }
  return out;
}

}  // namespace trainkit::detail
