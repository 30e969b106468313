#include "config/command_line.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

using Kind = RawValue::Kind;

/// Splits "0,1,2" into a list of texts.
RawValue split_list(const std::string& text) {
  RawValue list{.kind = Kind::kList};
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    list.items.push_back({.text = text.substr(begin, end - begin)});
    begin = end + 1;
  }
  return list;
}

/// Shortens a flag for an error message.
std::string shown(std::string_view flag) { return std::string(flag.substr(0, 200)); }

class CommandLine {
 public:
  CommandLine(const ConfigParser::State& state, const std::vector<std::string>& arguments)
      : state_(state), arguments_(arguments) {}

  absl::StatusOr<std::vector<Given>> read() {
    std::vector<Given> flags;
    std::map<const Option*, std::string> seen;
    while (at_ < arguments_.size()) {
      TRAINKIT_ASSIGN_OR_RETURN(Given flag, read_flag());
      const auto [first, is_new] = seen.emplace(flag.option, flag.source);
      if (!is_new) {
        const std::string also = first->second == flag.source ? "" : " (also as " + first->second + ")";
        return flag_error("duplicate", flag.source, {.problem = "given twice" + also, .hint = "give each flag once"});
      }
      flags.push_back(std::move(flag));
    }
    return flags;
  }

 private:
  absl::StatusOr<Given> read_flag() {
    const std::string& argument = arguments_[at_++];
    if (!is_flag(argument)) return unknown(argument);
    const size_t equals = argument.find('=');
    const std::string typed = shown(std::string_view(argument).substr(0, equals));
    const std::string name = argument == "-h" ? "help" : normalized(std::string_view(argument).substr(2, equals - 2));
    Given flag{.option = state_.find(name), .source = typed};
    const bool negated = flag.option == nullptr && name.starts_with("no_");
    if (negated) flag.option = state_.find(name.substr(3));
    if (flag.option == nullptr || (negated && !has_negation(*flag.option))) return unknown(argument);
    const bool no_value = negated || flag.option->is_switch;
    if (equals != std::string::npos) {
      if (no_value)
        return flag_error("value", typed, {.problem = "takes no value", .got = argument.substr(equals + 1)});
      if (equals + 1 == argument.size()) return missing(flag);
      flag.value = text_value(*flag.option, argument.substr(equals + 1));
    } else if (no_value || flag.option->binding->is_bool()) {
      flag.value.text = negated ? "false" : "true";
      // There are no positional arguments, so a word after a boolean is its value.
      if (!no_value && has_word()) flag.value.text = arguments_[at_++];
    } else if (!has_word()) {
      return missing(flag);
    } else if (flag.option->binding->is_list()) {
      flag.value.kind = Kind::kList;
      while (has_word()) {
        for (RawValue& item : text_value(*flag.option, arguments_[at_++]).items) {
          flag.value.items.push_back(std::move(item));
        }
      }
    } else {
      flag.value.text = arguments_[at_++];
    }
    return flag;
  }

  bool has_word() const { return at_ < arguments_.size() && !is_flag(arguments_[at_]); }
  static bool has_negation(const Option& option) { return option.binding->is_bool() && !option.is_switch; }

  static absl::Status missing(const Given& flag) {
    return flag_error("missing", flag.source,
                      {.problem = "no value",
                       .expected = flag.option->binding->metavar(flag.option->spec),
                       .hint = "write a value that begins with -- as " + flag.source + "=VALUE"});
  }

  absl::Status unknown(const std::string& argument) const {
    if (!argument.starts_with('-') || argument.size() < 2 || !is_flag(argument)) {
      return flag_error("positional", shown(argument),
                        {.problem = "unexpected argument", .hint = "put a value after its flag"});
    }
    const std::string name = normalized(shown(argument.substr(2, argument.find('=') - 2)));
    std::vector<std::string> names = state_.names();
    for (const auto& [known, option] : state_.by_name) {
      if (name.starts_with("no_") && has_negation(*option)) names.push_back("no_" + known);
    }
    return flag_error("unknown", shown(argument.substr(0, argument.find('='))),
                      {.problem = "no such flag", .hint = did_you_mean(name, names, "--")});
  }

  const ConfigParser::State& state_;
  const std::vector<std::string>& arguments_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<Given>> read_command_line(const ConfigParser::State& state,
                                                     const std::vector<std::string>& arguments) {
  return CommandLine(state, arguments).read();
}

std::string normalized(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

bool is_flag(std::string_view argument) {
  return (argument.size() > 2 && argument.starts_with("--") && !(argument[2] >= '0' && argument[2] <= '9')) ||
         argument == "-h";
}

RawValue text_value(const Option& option, const std::string& text) {
  if (!option.binding->is_list()) return RawValue{.text = text};
  // A path may contain a comma.
  if (option.spec.path != PathKind::kNone) return RawValue{.kind = Kind::kList, .items = {{.text = text}}};
  return split_list(text);
}

absl::Status error(ExitCode code, std::string id, std::string where, std::string field, Fault fault) {
  return to_status({.exit_code = code,
                    .id = std::move(id),
                    .where = std::move(where),
                    .field = std::move(field),
                    .problem = std::move(fault.problem),
                    .got = std::move(fault.got),
                    .expected = std::move(fault.expected),
                    .hint = std::move(fault.hint)});
}

absl::Status flag_error(std::string id, std::string_view flag, Fault fault) {
  return error(ExitCode::kUsage, "cli." + std::move(id), "", std::string(flag), std::move(fault));
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& names, const char* prefix) {
  std::string nearest = nearest_name(name, names);
  if (nearest.empty() && !name.empty()) {  // an abbreviation is an error, but a good guess for the hint
    const auto begins =
        std::find_if(names.begin(), names.end(), [&](const auto& known) { return known.starts_with(name); });
    if (begins != names.end()) nearest = *begins;
  }
  return nearest.empty() ? "see --help" : "did you mean " + std::string(prefix) + nearest + "?";
}

}  // namespace trainkit::detail
