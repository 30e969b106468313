// Which options have an effect: OptionSpec::modes and OptionSpec::needs.
#include <algorithm>

#include "config/command_line.h"
#include "config/parser_state.h"
#include "trainkit/config/config.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

using detail::Option;

bool contains(const std::vector<std::string>& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

/// The problem of a flag whose need has this value: "has no effect with --tokenizer char", "... without --dry_run".
std::string problem_with(const Option& option, const std::string& value) {
  const bool is_bool = option.binding->is_bool();
  const bool is_off = is_bool ? value == "false" : value.empty();
  return (is_off ? "has no effect without --" : "has no effect with --") + option.name +
         (is_off || is_bool ? "" : " " + value);
}

/// What a need asks for: "--scheduler plateau", "--lora_rank other than 0".
std::string wanted(const Option& option, const OptionNeed& need) {
  const std::string flag = "--" + option.name;
  if (option.binding->is_bool()) return contains(need.values, "true") == need.excludes ? "--no-" + option.name : flag;
  if (contains(need.values, "")) return need.excludes ? flag : "no " + flag;
  return flag + (need.excludes ? " other than " : " ") + detail::join(need.values, ", ", " or ");
}

std::string value_of(const Option& option, const Settings& resolved) {
  const auto found =
      std::find_if(resolved.begin(), resolved.end(), [&](const auto& each) { return each.first == option.name; });
  return found == resolved.end() ? option.binding->to_text() : found->second;
}

absl::Status unused(const Option& option, const std::string& problem, const std::string& expected) {
  return detail::flag_error("unused", option.source,
                            {.problem = problem, .expected = expected, .hint = "omit " + option.source});
}

}  // namespace

absl::Status ConfigParser::check_used(const ProgramMode& mode, const Settings& resolved) const {
  for (const auto& option : state_->options) {
    if (option->layer != detail::Layer::kFlag) continue;
    const auto& modes = option->spec.modes;
    const bool is_used = modes.empty() || std::any_of(modes.begin(), modes.end(), [&](const std::string& name) {
                           return contains(mode.names, name);
                         });
    if (!is_used) return unused(*option, "has no effect " + mode.text, "");
    // A default value and --no-<flag> say what holds anyway.
    if (option->binding->to_yaml(option->spec) == option->default_yaml) continue;
    if (option->binding->is_bool() && option->binding->to_text() == "false") continue;
    for (const OptionNeed& need : option->spec.needs) {
      const Option& other = state_->at(need.option);
      const std::string value = value_of(other, resolved);
      if (contains(need.values, value) == need.excludes) {
        return unused(*option, problem_with(other, value), wanted(other, need));
      }
    }
  }
  return absl::OkStatus();
}

std::vector<ConfigParser::OptionUse> ConfigParser::uses() const {
  std::vector<OptionUse> uses;
  for (const auto& option : state_->options) {
    if (option->spec.group == detail::kBuiltInGroup) continue;
    for (const OptionNeed& need : option->spec.needs) state_->at(need.option);  // throws for a name that does not exist
    uses.push_back({option->name, option->spec.modes, option->spec.needs});
  }
  return uses;
}

}  // namespace trainkit
