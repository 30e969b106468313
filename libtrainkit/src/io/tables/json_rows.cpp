#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/strict_json.h"
#include "io/tables/table_rows.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

/// Reads a JSON object per line. Its columns are the fields of the first line, or those that the options name.
class JsonRows final : public detail::TableRows {
 public:
  JsonRows(const TextFile& file, const TableOptions& options)
      : TableRows(file, options), kind_(options.kind), others_are_ignored_(!options.names.empty()) {
    names_ = options.names;
  }

  absl::StatusOr<bool> next() override {
    fields_.clear();
    texts_.clear();
    TRAINKIT_ASSIGN_OR_RETURN(auto line, next_line());
    while (line && line->find_first_not_of(" \t\r\n") == line->npos) {
      TRAINKIT_ASSIGN_OR_RETURN(line, next_line());
    }
    if (!line) return false;
    source_ = without_line_end(*line);
    const Error blame{
        .exit_code = ExitCode::kData, .id = "data." + kind_, .where = fmt::format("{}:{}", file_.path(), line_)};
    TRAINKIT_ASSIGN_OR_RETURN(const nlohmann::json object, detail::parse_strict_json(source_, blame));
    if (!object.is_object()) return bad("not a JSON object", object.type_name(), "{\"name\": value, ...}");
    if (names_.empty()) {
      for (const auto& [name, value] : object.items()) names_.push_back(name);
      if (names_.empty()) return bad("an object without fields", "{}", "{\"name\": value, ...}");
    }
    TRAINKIT_RETURN_IF_ERROR(take(object));
    return true;
  }

 private:
  absl::Status take(const nlohmann::json& object) {
    size_t taken = 0;
    nulls_.assign(names_.size(), false);
    for (size_t column = 0; column < names_.size(); ++column) {
      const auto value = object.find(names_[column]);
      taken += value != object.end() ? 1 : 0;
      nulls_[column] = value == object.end() || value->is_null();
      texts_.push_back(nulls_[column] ? std::string() : value->is_string() ? value->get<std::string>() : value->dump());
      if (texts_.back().find('\0') != std::string::npos) {
        return file_.bad(line_, names_[column], "a NUL character", "\\u0000", "text");
      }
      fields_.push_back(texts_.back());
    }
    if (others_are_ignored_ || taken == object.size()) return absl::OkStatus();
    for (const auto& [name, value] : object.items()) {
      if (std::find(names_.begin(), names_.end(), name) != names_.end()) continue;
      return bad("a field that the first line lacks", name, fmt::format("of {}", fmt::join(names_, ", ")));
    }
    return absl::OkStatus();
  }

  std::string kind_;
  bool others_are_ignored_;
};

}  // namespace

std::unique_ptr<detail::TableRows> detail::json_rows(const TextFile& file, const TableOptions& options) {
  return std::make_unique<JsonRows>(file, options);
}

}  // namespace trainkit
