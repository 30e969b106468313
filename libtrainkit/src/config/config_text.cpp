// Formats the parser's output: help, version and the resolved configuration.
#include <fmt/format.h>

#include <algorithm>

#include "parser_state.h"
#include "trainkit/core/error.h"

namespace trainkit {
namespace {

using detail::Option;
constexpr size_t kWidth = 100, kIndent = 30;

/// Wraps `text` at kWidth columns and indents all lines except the first by kIndent.
std::string wrapped(const std::string& text) {
  std::string out;
  size_t column = kIndent;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const bool first = column == kIndent;
    if (!first && column + 1 + end - begin > kWidth) {
      out += fmt::format("\n{:{}}", "", kIndent);
      column = kIndent;
    } else if (!first) {
      out += ' ';
      ++column;
    }
    out.append(text, begin, end - begin);
    column += end - begin;
    begin = end + 1;
  }
  return out;
}

/// Formats remarks such as "default: 4 (cpu); also --epoch". Empty if there are none.
std::string remarks(const Option& option) {
  std::vector<std::string> parts;
  const std::string value = option.binding->to_text();
  if (option.spec.required) parts.push_back("required");
  if (!option.is_switch && !option.spec.required && !value.empty()) {
    const bool refined = option.source.starts_with("default (");
    parts.push_back("default: " + value + (refined ? option.source.substr(sizeof "default" - 1) : ""));
  }
  std::string also;
  for (const std::string& alias : option.spec.aliases) also += (also.empty() ? "also --" : ", --") + alias;
  if (!also.empty()) parts.push_back(also);
  if (!option.refusal.empty()) parts.push_back("not supported: " + option.refusal);
  return parts.empty() ? "" : fmt::format(" [{}]", detail::join(parts, "; ", "; "));
}

std::string help_of(const Option& option) {
  const bool negatable = option.binding->is_bool() && !option.is_switch;
  std::string metavar = option.spec.metavar.empty() ? option.binding->metavar(option.spec) : option.spec.metavar;
  if (option.is_switch) metavar.clear();
  std::string head =
      fmt::format("  --{}{}{}{}", negatable ? "[no-]" : "", option.name, metavar.empty() ? "" : " ", metavar);
  head += head.size() + 1 < kIndent ? std::string(kIndent - head.size(), ' ') : fmt::format("\n{:{}}", "", kIndent);
  return head + wrapped(option.spec.help + remarks(option)) + "\n";
}

}  // namespace

std::string ConfigParser::help() const {
  const ProgramInfo& program = state_->program;
  std::string text =
      fmt::format("Usage: {}{}{} [--flag value ...]\n", program.name, program.words.empty() ? "" : " ", program.words);
  if (!program.description.empty()) text += fmt::format("\n{}\n", program.description);
  std::vector<const Option*> listed;
  for (const std::string& name : program.help_flags) listed.push_back(&state_->at(name));
  if (listed.empty()) {
    for (const auto& option : state_->options) listed.push_back(option.get());
  }
  std::vector<std::string> groups;
  for (const Option* option : listed) {
    if (std::find(groups.begin(), groups.end(), option->spec.group) == groups.end())
      groups.push_back(option->spec.group);
  }
  for (const std::string& group : groups) {
    text += fmt::format("\n{}:\n", group);
    for (const Option* option : listed) {
      if (option->spec.group == group) text += help_of(*option);
    }
  }
  const bool lists_presets = !state_->presets.empty() && program.help_flags.empty();
  if (lists_presets) text += "\nPresets:\n";
  for (const detail::Preset& preset : state_->presets) {
    if (!lists_presets) break;
    std::string settings;
    for (const auto& [name, value] : preset.settings) settings += fmt::format(" --{} {}", name, value);
    std::string head = fmt::format("  {:<{}}", preset.name, kIndent - 2);
    text += head + wrapped(preset.help + (preset.help.empty() ? "" : ":") + settings) + "\n";
  }
  text +=
      "\nUse '-' or '_' in names. --flag=value is the same as --flag value.\n"
      "Precedence: flags > file > preset > defaults.\n";
  if (!program.examples.empty()) text += "\nExamples:\n";
  for (const std::string& example : program.examples) text += fmt::format("  {}\n", example);
  return text;
}

std::string ConfigParser::to_yaml() const {
  std::string text = fmt::format("# {} {}\n", state_->program.name, state_->program.version);
  std::string group;
  for (const auto& option : state_->options) {
    if (option->spec.flag_only || option->name == "preset") continue;
    if (option->spec.group != group) text += fmt::format("\n# {}\n", group = option->spec.group);
    const std::string line = option->name + ": " + option->binding->to_yaml(option->spec);
    text += fmt::format("{:<39} # {}\n", line, escape_text(option->source, 200));
  }
  return text;
}

Settings ConfigParser::settings() const {
  Settings settings;
  for (const auto& option : state_->options) {
    if (option->spec.flag_only || option->name == "preset" || option->spec.path != PathKind::kNone) continue;
    settings.emplace_back(option->name, option->binding->to_yaml(option->spec));
  }
  return settings;
}

std::string ConfigParser::text(Request request) const {
  switch (request) {
    case Request::kRun:
      return "";
    case Request::kHelp:
      return help();
    case Request::kVersion:
      return state_->program.name + " " + state_->program.version + "\n";
    case Request::kPrintConfig:
      return to_yaml();
  }
  return "";
}

}  // namespace trainkit
