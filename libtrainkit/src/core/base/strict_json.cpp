#include "core/base/strict_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <vector>

namespace trainkit::detail {
namespace {

/// Thrown by the callback to leave the parser.
struct Rejected {
  std::string problem;
  std::string field;
};

}  // namespace

std::string json_problem(const std::exception& error) {
  const std::string text = error.what();
  const size_t at = text.rfind(" - ");
  const size_t colon = text.rfind(": ");
  const std::string tail = at != std::string::npos      ? text.substr(at + 3)
                           : colon != std::string::npos ? text.substr(colon + 2)
                                                        : text;
  return tail.substr(0, tail.find("; last read"));
}

bool holds_nul(std::string_view text) { return text.find('\0') != std::string_view::npos; }

absl::StatusOr<nlohmann::json> parse_strict_json(std::string_view text, const Error& blame, int max_depth) {
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, Event event, nlohmann::json& parsed) {
    if (depth >= max_depth && (event == Event::object_start || event == Event::array_start)) {
      throw Rejected{.problem = fmt::format("is nested deeper than {} levels", max_depth), .field = {}};
    }
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw Rejected{.problem = "is a duplicate key", .field = parsed.get<std::string>()};
    }
    return true;
  };
  Error error = blame;
  if (holds_nul(text)) {
    error.where += fmt::format("@0x{:x}", text.find('\0'));
    error.problem = "is not valid JSON: it holds a NUL byte";
    return to_status(error);
  }
  try {
    return nlohmann::json::parse(text.begin(), text.end(), check);
  } catch (const Rejected& rejected) {
    error.field = rejected.field;
    error.problem = rejected.problem;
  } catch (const nlohmann::json::parse_error& failure) {
    error.where +=
        fmt::format("@0x{:x}", failure.byte - std::min<size_t>(failure.byte, 1));  // `byte` includes the bad byte
    error.problem = "is not valid JSON: " + json_problem(failure);
  } catch (const nlohmann::json::exception& failure) {
    error.problem = "is not valid JSON: " + json_problem(failure);
  }
  return to_status(error);
}

}  // namespace trainkit::detail
