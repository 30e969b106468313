// Formats the parser's output: the resolved configuration, and the text of each request.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "config/completion.h"
#include "config/parser_state.h"
#include "trainkit/core/error.h"

namespace trainkit {

std::string detail::yaml_string(const std::string& text) {
  const auto is_word = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == '/'; };
  const bool plain = !text.empty() && (std::isalpha(static_cast<unsigned char>(text[0])) || text[0] == '/') &&
                     std::all_of(text.begin(), text.end(), is_word) && text != "true" && text != "false" &&
                     text != "null" && text != "Null" && text != "NULL";
  return plain ? text : nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
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
      return help(state_->help_topic);
    case Request::kCompletion:
      return detail::completion_script(*state_);
    case Request::kVersion:
      return state_->program.name + " " + state_->program.version + "\n";
    case Request::kPrintConfig:
      return to_yaml();
  }
  return "";
}

}  // namespace trainkit
