// Converts the text of a value to the type of its option.
#include "config/binding.h"

#include <absl/strings/ascii.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "config/raw_value.h"
#include "config/read_number.h"
#include "core/base/utf8.h"
#include "trainkit/core/error.h"

namespace trainkit::detail {
namespace {

using Kind = RawValue::Kind;

template <class T>
constexpr const char* type_name() {
  if constexpr (std::is_same_v<T, bool>)
    return "a boolean";
  else if constexpr (std::is_integral_v<T>)
    return "an integer";
  else if constexpr (std::is_same_v<T, double>)
    return "a number";
  else if constexpr (std::is_same_v<T, Seconds>)
    return "a time";
  else if constexpr (std::is_same_v<T, IntOrAuto>)
    return "an integer or 'auto'";
  else if constexpr (std::is_same_v<T, std::string>)
    return "text";
  else
    return "a list";
}

/// Describes the rule for a value of type T: "1..1048576", "> 0", "fail, skip or replace".
template <class T>
std::string rule(const OptionSpec& spec) {
  if (!spec.choices.empty()) return join(spec.choices, ", ", " or ");
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_same_v<T, std::string>) return spec.path == PathKind::kNone ? "text" : "a path";
  std::string text;
  auto low = spec.min, high = spec.max;
  if constexpr (std::is_unsigned_v<T> && !std::is_same_v<T, bool>) {
    if (!low && !high) return fmt::format("0..{}", std::numeric_limits<T>::max());
  }
  if (spec.above) {
    text = fmt::format("> {}", *spec.above);
    if (high) text += fmt::format(" and <= {}", *high);
  } else if (low && high) {
    text = fmt::format("{}..{}", *low, *high);
  } else if (low) {
    text = fmt::format(">= {}", *low);
  } else if (high) {
    text = fmt::format("<= {}", *high);
  } else {
    text = std::is_same_v<T, double> ? "a finite number" : std::is_same_v<T, Seconds> ? "seconds" : "a 64-bit integer";
    if constexpr (std::is_same_v<T, int>) text = "a 32-bit integer";
  }
  if constexpr (std::is_same_v<T, IntOrAuto>) text += " or auto";
  if constexpr (std::is_same_v<T, Seconds>) text += ", as 90, 90s, 45m, 1h30m or 2d";
  return text;
}

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::kText:
      return "text";
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return "a boolean";
    case Kind::kNumber:
      return "a number";
    case Kind::kString:
      return "a string";
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a mapping";
  }
  return "";
}

template <class T>
Fault type_fault(const RawValue& raw, const OptionSpec& spec) {
  Fault fault{.problem = fmt::format("not {}", type_name<T>()), .got = raw.text, .expected = rule<T>(spec)};
  // Show a word or a number itself, and the kind of any other value.
  if (raw.kind != Kind::kText && raw.kind != Kind::kNumber) {
    fault.problem = fmt::format("{}, {}", kind_name(raw.kind), fault.problem);
  }
  if (std::is_same_v<T, std::string> && (raw.kind == Kind::kNumber || raw.kind == Kind::kBool)) {
    fault.problem = fmt::format("{}, not text", kind_name(raw.kind));
    if (spec.choices.empty()) fault.hint = "put it in quotes";
  }
  return fault;
}

template <class T>
std::optional<Fault> reading_fault(Reading reading, const RawValue& raw, const OptionSpec& spec) {
  if (reading == Reading::kOk) return std::nullopt;
  if (reading == Reading::kSyntax) return type_fault<T>(raw, spec);
  const char* problem = reading == Reading::kNotFinite ? "not a finite number"
                        : std::is_integral_v<T>        ? "out of range"
                                                       : "too large or too small for a double";
  return Fault{.problem = problem, .got = raw.text, .expected = rule<T>(spec), .wrong_type = false};
}

template <class T>
std::optional<Fault> range_fault(double value, const RawValue& raw, const OptionSpec& spec) {
  const bool low = (spec.min && value < *spec.min) || (spec.above && value <= *spec.above);
  if (!low && !(spec.max && value > *spec.max)) return std::nullopt;
  return Fault{.problem = "out of range", .got = raw.text, .expected = rule<T>(spec), .wrong_type = false};
}

template <class T>
requires(std::is_arithmetic_v<T> &&
         !std::is_same_v<T, bool>) std::optional<Fault> parse(const RawValue& raw, const OptionSpec& spec, T& value) {
  if (raw.kind != Kind::kText && raw.kind != Kind::kNumber) return type_fault<T>(raw, spec);
  if (auto fault = reading_fault<T>(read_number(raw.text, value), raw, spec)) return fault;
  return range_fault<T>(static_cast<double>(value), raw, spec);
}

std::optional<Fault> parse(const RawValue& raw, const OptionSpec& spec, bool& value) {
  const bool allowed_kind = raw.kind == Kind::kText || raw.kind == Kind::kBool;
  if (!allowed_kind || (raw.text != "true" && raw.text != "false")) return type_fault<bool>(raw, spec);
  value = raw.text == "true";
  return std::nullopt;
}

std::optional<Fault> parse(const RawValue& raw, const OptionSpec& spec, std::string& value) {
  if (raw.kind != Kind::kText && raw.kind != Kind::kString) return type_fault<std::string>(raw, spec);
  const auto refuse = [&](const char* problem, std::string hint = {}) {
    return Fault{.problem = problem,
                 .got = raw.text,
                 .expected = rule<std::string>(spec),
                 .hint = std::move(hint),
                 .wrong_type = false};
  };
  if (raw.text.empty()) return refuse("empty");
  if (raw.text.find('\0') != std::string::npos) return refuse("holds a NUL byte");
  if (find_invalid_utf8(raw.text) != raw.text.size()) return refuse("not valid UTF-8");
  if (!spec.choices.empty() && std::find(spec.choices.begin(), spec.choices.end(), raw.text) == spec.choices.end()) {
    std::string lower = raw.text.substr(0, 64);
    absl::AsciiStrToLower(&lower);
    const std::string nearest = nearest_name(lower, spec.choices);
    return refuse("not one of the choices", nearest.empty() ? "" : "did you mean '" + nearest + "'?");
  }
  value = raw.text;
  return std::nullopt;
}

std::optional<Fault> parse(const RawValue& raw, const OptionSpec& spec, IntOrAuto& value) {
  if (raw.text == "auto" && (raw.kind == Kind::kText || raw.kind == Kind::kString)) return value = {}, std::nullopt;
  int64_t number = 0;
  if (raw.kind != Kind::kText && raw.kind != Kind::kNumber) return type_fault<IntOrAuto>(raw, spec);
  const Reading reading = read_number(raw.text, number);
  if (reading == Reading::kSyntax) return type_fault<IntOrAuto>(raw, spec);
  if (reading == Reading::kRange) {
    return Fault{.problem = "out of range", .got = raw.text, .expected = rule<IntOrAuto>(spec), .wrong_type = false};
  }
  value.value = number;
  return range_fault<IntOrAuto>(static_cast<double>(number), raw, spec);
}

std::optional<Fault> parse(const RawValue& raw, const OptionSpec& spec, Seconds& value) {
  const bool allowed_kind = raw.kind == Kind::kText || raw.kind == Kind::kNumber || raw.kind == Kind::kString;
  double seconds = 0;
  if (!allowed_kind || raw.text.empty()) return type_fault<Seconds>(raw, spec);
  if (auto fault = reading_fault<Seconds>(read_seconds(raw.text, seconds), raw, spec)) return fault;
  value = Seconds(seconds);
  return range_fault<Seconds>(seconds, raw, spec);
}

template <class T>
std::optional<Fault> parse(const RawValue& raw, const OptionSpec& spec, std::optional<T>& value) {
  if (raw.kind == Kind::kNull) return value.reset(), std::nullopt;
  return parse(raw, spec, value.emplace());
}

template <class T>
std::optional<Fault> parse(const RawValue& raw, const OptionSpec& spec, std::vector<T>& value) {
  if (raw.kind == Kind::kNull) return value.clear(), std::nullopt;
  if (std::is_same_v<T, std::string> && spec.path != PathKind::kNone && raw.kind == Kind::kString) {
    RawValue one{.kind = Kind::kList, .items = {raw}, .line = raw.line, .column = raw.column};
    return parse(one, spec, value);
  }
  if (raw.kind != Kind::kList) return type_fault<std::vector<T>>(raw, spec);
  const auto refuse = [&](const RawValue& at, std::string problem, std::string got, std::string expected) {
    return Fault{.problem = std::move(problem),
                 .got = std::move(got),
                 .expected = std::move(expected),
                 .hint = {},
                 .wrong_type = false,
                 .line = at.line,
                 .column = at.column};
  };
  if (raw.items.size() < spec.min_items || raw.items.size() > spec.max_items) {
    return refuse(raw, "wrong number of elements", fmt::format("{}", raw.items.size()),
                  fmt::format("{}..{} elements", spec.min_items, spec.max_items));
  }
  for (const RawValue& item : raw.items) {
    T element{};
    if (auto fault = parse(item, spec, element)) {
      fault->line = item.line;
      fault->column = item.column;
      return fault;
    }
    if (spec.unique_items && std::find(value.begin(), value.end(), element) != value.end()) {
      return refuse(item, "duplicate element", item.text, "unique elements");
    }
    value.push_back(std::move(element));
  }
  return std::nullopt;
}

std::string yaml(bool value, const OptionSpec&) { return value ? "true" : "false"; }
std::string yaml(Seconds value, const OptionSpec&) { return fmt::format("{}", value.count()); }
std::string yaml(const IntOrAuto& value, const OptionSpec&) {
  return value.is_auto() ? "auto" : std::to_string(*value.value);
}
std::string yaml(const std::string& value, const OptionSpec& spec) {
  if (value.empty()) return "null";
  const auto& words = spec.path_words;
  if (spec.path == PathKind::kNone || std::find(words.begin(), words.end(), value) != words.end()) {
    return yaml_string(value);
  }
  std::error_code failed;  // the working directory no longer exists: keep the path
  const auto absolute = std::filesystem::absolute(value, failed);
  return yaml_string(failed ? value : plain_path(absolute));
}
template <class T>
requires std::is_arithmetic_v<T> std::string yaml(T value, const OptionSpec&) { return fmt::format("{}", value); }
template <class T>
std::string yaml(const std::optional<T>& value, const OptionSpec& spec) {
  return value ? yaml(*value, spec) : "null";
}
template <class T>
std::string yaml(const std::vector<T>& value, const OptionSpec& spec) {
  if (value.empty()) return "null";
  std::string text = "[";
  for (size_t i = 0; i < value.size(); ++i) text += (i ? ", " : "") + yaml(value[i], spec);
  return text + "]";
}

/// See Binding::default_problem().
std::string default_problem(double value) {
  return std::isfinite(value) ? "" : fmt::format("must be finite, got {}", value);
}
std::string default_problem(Seconds value) { return default_problem(value.count()); }
template <class T>
std::string default_problem(const T&) {
  return {};
}
template <class T>
std::string default_problem(const std::optional<T>& value) {
  return value ? default_problem(*value) : "";
}
template <class T>
std::string default_problem(const std::vector<T>& values) {
  for (const T& value : values) {
    if constexpr (std::is_same_v<T, std::string>) {
      if (value.empty()) return "must not contain an empty string";
    }
    if (std::string problem = default_problem(value); !problem.empty()) return problem;
  }
  return {};
}

template <class T>
struct Element {
  using Type = T;
  static constexpr bool kList = false;
};
template <class T>
struct Element<std::optional<T>> : Element<T> {};
template <class T>
struct Element<std::vector<T>> {
  using Type = T;
  static constexpr bool kList = true;
};

template <class T>
class VariableBinding : public Binding {
 public:
  explicit VariableBinding(T* variable) : variable_(variable) {
    if constexpr (std::is_same_v<T, std::string>) may_be_nothing_ = variable->empty();
  }

  std::optional<Fault> assign(const RawValue& raw, const OptionSpec& spec, bool commit) override {
    T value{};
    if (raw.kind != Kind::kNull || !may_be_nothing_) {
      if (auto fault = parse(raw, spec, value)) return fault;
    }
    if (commit) *variable_ = std::move(value);
    return std::nullopt;
  }

  std::string to_yaml(const OptionSpec& spec) const override { return yaml(*variable_, spec); }

  std::string to_text() const override {
    if constexpr (std::is_same_v<T, std::string>) return *variable_;
    const std::string text = yaml(*variable_, {});
    return text == "null" ? "" : text;
  }

  std::string metavar(const OptionSpec& spec) const override {
    using E = typename Element<T>::Type;
    if (!spec.choices.empty()) return join(spec.choices, "|", "|");
    const std::string one = std::is_same_v<E, bool>        ? ""
                            : std::is_same_v<E, IntOrAuto> ? "N|auto"
                            : std::is_integral_v<E>        ? "N"
                            : std::is_same_v<E, double>    ? "X"
                            : std::is_same_v<E, Seconds>   ? "TIME"
                            : spec.path != PathKind::kNone ? "PATH"
                                                           : "TEXT";
    return Element<T>::kList ? one + " [" + one + " ...]" : one;
  }

  std::string default_problem() const override { return detail::default_problem(*variable_); }

  bool is_bool() const override { return std::is_same_v<typename Element<T>::Type, bool>; }
  bool is_list() const override { return Element<T>::kList; }

 private:
  T* variable_;
  bool may_be_nothing_ = false;
};

class ChoiceBinding : public Binding {
 public:
  ChoiceBinding(std::vector<std::string> names, std::function<size_t()> get, std::function<void(size_t)> set)
      : names_(std::move(names)),
        get_(std::move(get)),
        set_(std::move(set)),
        may_be_nothing_(get_() == names_.size()) {}

  std::optional<Fault> assign(const RawValue& raw, const OptionSpec& spec, bool commit) override {
    std::string word;
    if (raw.kind != Kind::kNull || !may_be_nothing_) {
      if (auto fault = parse(raw, spec, word)) return fault;
    }
    if (commit) set_(std::find(names_.begin(), names_.end(), word) - names_.begin());
    return std::nullopt;
  }
  std::string to_yaml(const OptionSpec& spec) const override { return yaml(to_text(), spec); }
  std::string to_text() const override {
    const size_t i = get_();  // the number of names: an empty value
    return i < names_.size() ? names_[i] : "";
  }
  std::string metavar(const OptionSpec&) const override { return join(names_, "|", "|"); }

 private:
  std::vector<std::string> names_;
  std::function<size_t()> get_;
  std::function<void(size_t)> set_;
  bool may_be_nothing_;
};

}  // namespace

template <class T>
std::shared_ptr<Binding> make_binding(T* variable) {
  return std::make_unique<VariableBinding<T>>(variable);
}

template std::shared_ptr<Binding> make_binding(bool*);
template std::shared_ptr<Binding> make_binding(int*);
template std::shared_ptr<Binding> make_binding(int64_t*);
template std::shared_ptr<Binding> make_binding(uint64_t*);
template std::shared_ptr<Binding> make_binding(double*);
template std::shared_ptr<Binding> make_binding(std::string*);
template std::shared_ptr<Binding> make_binding(Seconds*);
template std::shared_ptr<Binding> make_binding(IntOrAuto*);
template std::shared_ptr<Binding> make_binding(std::vector<int>*);
template std::shared_ptr<Binding> make_binding(std::vector<int64_t>*);
template std::shared_ptr<Binding> make_binding(std::vector<double>*);
template std::shared_ptr<Binding> make_binding(std::vector<std::string>*);
template std::shared_ptr<Binding> make_binding(std::optional<bool>*);
template std::shared_ptr<Binding> make_binding(std::optional<int>*);
template std::shared_ptr<Binding> make_binding(std::optional<int64_t>*);
template std::shared_ptr<Binding> make_binding(std::optional<double>*);
template std::shared_ptr<Binding> make_binding(std::optional<Seconds>*);

std::shared_ptr<Binding> make_choice_binding(std::vector<std::string> names, std::function<size_t()> get,
                                             std::function<void(size_t)> set) {
  return std::make_unique<ChoiceBinding>(std::move(names), std::move(get), std::move(set));
}

std::string plain_path(const std::filesystem::path& path) {
  const auto plain = path.lexically_normal();
  if (std::find(path.begin(), path.end(), "..") == path.end()) return plain.string();
  std::error_code failed, plain_failed;
  const auto place = std::filesystem::weakly_canonical(path, failed);
  const bool same = place == std::filesystem::weakly_canonical(plain, plain_failed) && !failed && !plain_failed;
  return same ? plain.string() : path.string();
}

std::string join(const std::vector<std::string>& words, const char* between, const char* last) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) text += (i == 0 ? "" : i + 1 == words.size() ? last : between) + words[i];
  return text;
}

}  // namespace trainkit::detail
