#include "io/tables/table_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "io/tables/cells.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace detail {

absl::StatusOr<std::optional<std::string_view>> TableRows::next_line() {
  while (true) {
    TRAINKIT_ASSIGN_OR_RETURN(const auto line, lines_.next());
    if (!line) return std::nullopt;
    if (without_line_end(*line).empty()) continue;
    line_ = lines_.number();
    if (!file_.is_latin1()) return *line;
    converted_ = file_.to_utf8(*line);
    return converted_;
  }
}

absl::Status no_such_column(const std::string& path, const std::string& kind, const std::vector<std::string>& columns,
                            std::string_view name) {
  const std::string nearest = nearest_name(name, columns);
  return data_error("data." + kind, {.file = path, .field = std::string(name)}, "no such column", "",
                    fmt::format("one of {}", fmt::join(columns, ", ")),
                    nearest.empty() ? "" : fmt::format("did you mean '{}'?", nearest));
}

}  // namespace detail

void split_fields(std::string_view text, std::string_view separator, std::vector<std::string_view>& fields) {
  fields.clear();
  for (size_t end = text.find(separator); end != text.npos; end = text.find(separator)) {
    fields.push_back(text.substr(0, end));
    text.remove_prefix(end + separator.size());
  }
  fields.push_back(text);
}

}  // namespace trainkit
