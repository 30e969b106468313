#include "core/base/strict_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

namespace trainkit::detail {
namespace {

using Json = nlohmann::json;

/// A text that the grammar allows and parse_strict_json() does not.
struct Rejected {
  std::string problem;
  std::string field;
};

/// Builds the value of a text. nlohmann's parser with a callback visits all members read so far at each end of an
/// object or array, so that its time grows with the square of the members.
class StrictReader final : public Json::json_sax_t {
 public:
  StrictReader(Json& root, int max_depth) : root_(root), max_depth_(static_cast<size_t>(max_depth)) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(int64_t value) override { return put(value); }
  bool number_unsigned(uint64_t value) override { return put(value); }
  bool number_float(double value, const std::string&) override { return put(value); }
  bool string(std::string& value) override { return put(std::move(value)); }
  bool binary(Json::binary_t& value) override { return put(std::move(value)); }
  bool start_object(size_t) override { return open(Json::value_t::object); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(Json::value_t::array); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    const auto [member, is_new] = open_.back()->get_ref<Json::object_t&>().try_emplace(name);
    if (!is_new) throw Rejected{.problem = "is a duplicate key", .field = name};
    member_ = &member->second;
    return true;
  }

  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    if (const auto* at = dynamic_cast<const Json::parse_error*>(&error)) throw *at;
    if (const auto* at = dynamic_cast<const Json::out_of_range*>(&error)) throw *at;
    throw Rejected{.problem = "is not valid JSON: " + json_problem(error), .field = {}};
  }

 private:
  /// Puts a value where the text is: at the outermost place, in the open array or in the last member. Returns where.
  template <class Value>
  Json& place(Value&& value) {
    if (open_.empty()) return root_ = std::forward<Value>(value);
    if (open_.back()->is_object()) return *member_ = std::forward<Value>(value);
    return open_.back()->get_ref<Json::array_t&>().emplace_back(std::forward<Value>(value));
  }

  template <class Value>
  bool put(Value&& value) {
    place(std::forward<Value>(value));
    return true;
  }

  bool open(Json::value_t type) {
    if (open_.size() >= max_depth_)
      throw Rejected{.problem = fmt::format("is nested deeper than {} levels", max_depth_), .field = {}};
    open_.push_back(&place(Json(type)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  Json& root_;
  size_t max_depth_;
  std::vector<Json*> open_;  // objects and arrays around the place; their addresses stay until they close
  Json* member_ = nullptr;
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
  Error error = blame;
  if (holds_nul(text)) {
    error.where += fmt::format("@0x{:x}", text.find('\0'));
    error.problem = "is not valid JSON: it holds a NUL byte";
    return to_status(error);
  }
  try {
    Json json;
    StrictReader reader(json, max_depth);
    Json::sax_parse(text.begin(), text.end(), &reader);
    return json;
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
