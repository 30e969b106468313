#include "transformer/json_lines.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "core/base/strict_json.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::transformer {
namespace {

/// Returns the names of an object's string fields, at most five.
std::string string_fields(const nlohmann::json& object) {
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) {
    if (value.is_string() && names.size() < 5) names.push_back(escape_text(name));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

absl::StatusOr<std::string> read_line(const Error& blame, std::string_view line, const std::string& field) {
  TRAINKIT_ASSIGN_OR_RETURN(nlohmann::json object, detail::parse_strict_json(line, blame));
  const auto bad = [&](const std::string& name, const std::string& problem, const std::string& got,
                       const std::string& expected, const std::string& hint) {
    Error error = blame;
    error.field = name, error.problem = problem, error.got = got, error.expected = expected, error.hint = hint;
    return to_status(error);
  };
  if (!object.is_object()) return bad("", "not a JSON object", object.type_name(), "{\"" + field + "\": \"...\"}", "");
  const auto found = object.find(field);
  if (found == object.end()) {
    const std::string others = string_fields(object);
    return bad(field, "no such field", "", "a field with the text",
               others.empty() ? "" : "--jsonl_field selects one of: " + others);
  }
  if (!found->is_string()) return bad(field, "not a string", found->type_name(), "a string", "");
  std::string& text = found->get_ref<std::string&>();
  if (text.find('\0') != text.npos) return bad(field, "a NUL character in a text", "\\u0000", "text", "");
  return std::move(text);
}

}  // namespace

absl::Status for_each_json_line(const std::string& path, std::string_view content, const std::string& field,
                                const std::function<absl::Status(const std::string& text)>& take) {
  int64_t number = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string_view line = content.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const Error blame{.exit_code = ExitCode::kData, .id = "data.jsonl", .where = fmt::format("{}:{}", path, number)};
    TRAINKIT_ASSIGN_OR_RETURN(const std::string text, read_line(blame, line, field));
    TRAINKIT_RETURN_IF_ERROR(take(text));
  }
  return absl::OkStatus();
}

}  // namespace trainkit::transformer
