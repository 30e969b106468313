// Formats --help: one screen with the most used flags, or all flags of a heading or of the program.
#include "config/help.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "config/parser_state.h"

namespace trainkit {
namespace {

using detail::Option;
using Options = std::vector<const Option*>;

constexpr size_t kExamplesOnScreen = 4;
constexpr ptrdiff_t kLinesOnScreen = 40;

/// Columns of a line: the variable COLUMNS, else the terminal's width, else 80.
size_t line_width() {
  int columns = 0;
  winsize size{};
  if (const char* given = std::getenv("COLUMNS")) std::from_chars(given, given + std::strlen(given), columns);
  if (columns <= 0 && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) columns = size.ws_col;
  return static_cast<size_t>(std::clamp(columns <= 0 ? 80 : columns, 40, 120));
}

/// Wraps `text` at `width` columns. The first line begins at column `column`; the others are indented by `indent`, and
/// the line before each of them ends with `mark`.
std::string wrap(const std::string& text, size_t width, size_t column, size_t indent, const char* mark = "") {
  std::string out;
  bool is_first = true;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    const size_t room = width - (end == text.size() ? 0 : std::strlen(mark));
    if (!is_first && column + 1 + end - begin > room) {
      out += fmt::format("{}\n{:{}}", mark, "", indent);
      column = indent;
    } else if (!is_first) {
      out += ' ';
      ++column;
    }
    out.append(text, begin, end - begin);
    column += end - begin;
    is_first = false;
    begin = end + 1;
    if (end < text.size() && text[end] == '\n') {
      out += fmt::format("\n{:{}}", "", end + 1 < text.size() && text[end + 1] == '\n' ? 0 : indent);
      column = indent, is_first = true;
    }
  }
  return out;
}

/// Returns the first sentence without its full stop, or the first part that a semicolon ends.
std::string first_sentence(const std::string& help) {
  size_t stop = help.find(". ");
  while (stop != std::string::npos && help.substr(0, stop).ends_with("..")) stop = help.find(". ", stop + 1);
  std::string text = help.substr(0, std::min({stop, help.find("; "), help.size()}));
  if (text.ends_with('.') && !text.ends_with("...")) text.pop_back();
  return text;
}

/// Formats remarks such as "default: 4 (cpu); also --epoch". Empty if there are none.
std::string remarks(const Option& option, bool brief) {
  std::vector<std::string> parts;
  const std::string value = option.binding->to_text();
  if (option.spec.required) parts.push_back("required");
  const bool is_off = brief && value == "false";
  if (!option.is_switch && !option.spec.required && !value.empty() && !is_off) {
    const bool refined = option.source.starts_with("default (");
    parts.push_back("default: " + value + (refined ? option.source.substr(sizeof "default" - 1) : ""));
  }
  std::string also;
  for (const std::string& alias : option.spec.aliases) also += (also.empty() ? "also --" : ", --") + alias;
  if (!also.empty() && !brief) parts.push_back(also);
  if (!option.refusal.empty()) parts.push_back("not supported: " + option.refusal);
  return parts.empty() ? "" : fmt::format(" [{}]", detail::join(parts, "; ", "; "));
}

class HelpText {
 public:
  HelpText(const ConfigParser::State& state, size_t width)
      : state_(state), width_(width), indent_(std::clamp<size_t>(width / 3, 16, 30)) {}

  std::string option(const Option& option, bool brief) const {
    const bool negatable = option.binding->is_bool() && !option.is_switch;
    std::string metavar = option.spec.metavar.empty() ? option.binding->metavar(option.spec) : option.spec.metavar;
    if (option.is_switch && option.spec.metavar.empty()) metavar.clear();
    std::string text = brief ? first_sentence(option.spec.help) : option.spec.help;
    if (2 + 2 + option.name.size() + 1 + metavar.size() > width_ && !option.spec.choices.empty()) {
      metavar = "WORD";
      text += fmt::format("{}{}.", brief ? ": " : " WORD: ", detail::join(option.spec.choices, ", ", " or "));
    }
    std::string head =
        fmt::format("  --{}{}{}{}", negatable ? "[no-]" : "", option.name, metavar.empty() ? "" : " ", metavar);
    text += remarks(option, brief);
    if (brief && head.size() + 1 >= indent_ && head.size() + 2 + text.size() <= width_)
      return head + "  " + text + "\n";
    head += head.size() + 1 < indent_ ? std::string(indent_ - head.size(), ' ') : fmt::format("\n{:{}}", "", indent_);
    return head + wrap(text, width_, indent_, indent_) + "\n";
  }

  std::string options_of(const std::string& group, const Options& listed) const {
    std::string text = fmt::format("\n{}:\n", group);
    for (const Option* each : listed) {
      if (each->spec.group == group) text += option(*each, /*brief=*/false);
    }
    return text;
  }

  std::string beginning() const {
    const ProgramInfo& program = state_.program;
    std::string text = fmt::format("Usage: {}{}{} [--flag value ...]\n", program.name, program.words.empty() ? "" : " ",
                                   program.words);
    if (!program.description.empty()) text += "\n" + wrap(program.description, width_, 0, 0) + "\n";
    return text;
  }

  std::string examples(size_t count) const {
    const std::vector<std::string>& all = state_.program.examples;
    std::string text = all.empty() ? "" : "\nExamples:\n";
    for (size_t i = 0; i < std::min(count, all.size()); ++i) text += "  " + wrap(all[i], width_, 2, 6, " \\") + "\n";
    return text;
  }

  std::string commands(bool brief) const {
    std::string text;
    for (const auto& [name, summary] : state_.program.commands) {
      const std::string head = fmt::format("  {:<{}}", name, std::max(indent_ - 2, name.size() + 1));
      text += head + wrap(brief ? first_sentence(summary) : summary, width_, head.size(), indent_) + "\n";
    }
    return text.empty()
               ? ""
               : fmt::format("\nCommands ({} COMMAND --help lists their flags):\n", state_.program.name) + text;
  }

  std::string presets() const {
    std::string text = state_.presets.empty() ? "" : "\nPresets:\n";
    for (const detail::Preset& preset : state_.presets) {
      std::string settings;
      for (const auto& [name, value] : preset.settings) settings += fmt::format(" --{} {}", name, value);
      const std::string head = fmt::format("  {:<{}}", preset.name, std::max(indent_ - 2, preset.name.size() + 1));
      text +=
          head + wrap(preset.help + (preset.help.empty() ? "" : ":") + settings, width_, head.size(), indent_) + "\n";
    }
    return text;
  }

  std::string notes() const {
    std::string text =
        "Use '-' or '_' in names. --flag=value is the same as --flag value. Precedence: flags > file > preset > "
        "defaults.";
    text = "\n" + wrap(text, width_, 0, 0) + "\n";
    if (!state_.program.remark.empty()) text += "\n" + wrap(state_.program.remark, width_, 0, 0) + "\n";
    return text;
  }

  /// Names the ways to see the rest.
  std::string further() const {
    std::vector<std::string> topics;
    for (const std::string& group : state_.groups()) topics.push_back(detail::topic_name(group));
    const std::string text = fmt::format(
        "--help all lists every flag, --help FLAG explains one, --help GROUP those of "
        "{}.",
        detail::join(topics, ", ", " or "));
    return "\n" + wrap(text, width_, 0, 0) + "\n";
  }

 private:
  const ConfigParser::State& state_;
  const size_t width_, indent_;
};

/// All flags that --help lists. A program without presets has no use for --preset.
Options all_options(const ConfigParser::State& state) {
  Options all;
  for (const auto& option : state.options) {
    if (option->name != "preset" || !state.presets.empty()) all.push_back(option.get());
  }
  return all;
}

/// The flags of one screen.
Options most_used(const ConfigParser::State& state) {
  const ProgramInfo& program = state.program;
  const auto& shared = program.shared_groups;
  Options listed;
  const auto add = [&](const Option* option) {
    if (std::find(listed.begin(), listed.end(), option) == listed.end()) listed.push_back(option);
  };
  for (const std::string& name : program.help_flags) add(&state.at(name));
  for (const Option* option : all_options(state)) {
    const std::string& group = option->spec.group;
    const bool is_own =
        group != detail::kBuiltInGroup && std::find(shared.begin(), shared.end(), group) == shared.end();
    if (program.help_flags.empty() && is_own) add(option);
  }
  if (!state.presets.empty() && !shared.empty()) add(&state.at("preset"));
  for (const std::string& name : program.shared_flags) add(&state.at(name));
  return listed;
}

}  // namespace

std::string detail::command_help(const ProgramInfo& program) {
  ConfigParser::State state;
  state.program = program;
  const size_t width = line_width();
  const HelpText text(state, width);
  return text.beginning() + text.commands(/*brief=*/false) + "\n" + wrap(program.remark, width, 0, 0) + "\n" +
         text.examples(SIZE_MAX);
}

std::string detail::topic_name(std::string_view group) {
  std::string name;
  for (const char c : group) {
    const bool is_upper = c >= 'A' && c <= 'Z';
    name += is_upper ? static_cast<char>(c - 'A' + 'a') : (c == ' ' || c == '-') ? '_' : c;
  }
  return name;
}

std::vector<std::string> ConfigParser::State::groups() const {
  std::vector<std::string> own, all;
  const std::vector<std::string>& shared = program.shared_groups;
  const auto add = [](std::vector<std::string>& groups, const std::string& group) {
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  };
  for (const auto& option : options) {
    const std::string& group = option->spec.group;
    const bool is_shared = std::find(shared.begin(), shared.end(), group) != shared.end();
    if (group != detail::kBuiltInGroup) add(is_shared ? all : own, group);
  }
  all.insert(all.begin(), own.begin(), own.end());
  add(all, detail::kBuiltInGroup);
  return all;
}

std::string ConfigParser::State::group_of_topic(std::string_view topic) const {
  for (const std::string& group : groups()) {
    if (detail::topic_name(group) == topic) return group;
  }
  return {};
}

std::string ConfigParser::help(std::string_view topic) const {
  const HelpText text(*state_, line_width());
  const Options all = all_options(*state_);
  if (const std::string group = state_->group_of_topic(topic); !group.empty()) {
    return text.options_of(group, all).substr(1) + (group == detail::kBuiltInGroup ? text.presets() : "");
  }
  if (!topic.empty() && topic != "all") return text.option(state_->at(topic), /*brief=*/false);
  std::string whole = text.beginning() + text.examples(SIZE_MAX) + text.commands(/*brief=*/false);
  for (const std::string& group : state_->groups()) whole += text.options_of(group, all);
  whole += text.presets() + text.notes();
  if (topic == "all" || std::count(whole.begin(), whole.end(), '\n') <= kLinesOnScreen) {
    return whole;
  }
  std::string flags = "\nFlags:\n", screen;
  for (const Option* option : most_used(*state_)) flags += text.option(*option, /*brief=*/true);
  for (size_t examples = kExamplesOnScreen; examples > 0; --examples) {
    screen = text.beginning() + text.examples(examples) + text.commands(/*brief=*/true) + flags + text.further();
    if (std::count(screen.begin(), screen.end(), '\n') <= kLinesOnScreen) break;
  }
  return screen;
}

}  // namespace trainkit
