#include "config/completion.h"

#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "config/parser_state.h"

namespace trainkit::detail {
namespace {

/// Name of the shell function of a program: "trainkit-hsi predict" -> "_trainkit_hsi_predict".
std::string function_name(const std::string& program) {
  std::string name = "_" + program;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == ' ' || c == '.'; }, '_');
  return name;
}

/// All flags with dashes, with the --no_ form of booleans.
std::vector<std::string> flags_with_dashes(const CompletedProgram& program) {
  std::vector<std::string> flags;
  for (const CompletedFlag& flag : program.flags) {
    flags.push_back("--" + flag.names.front());
    if (flag.has_negation) flags.push_back("--no_" + flag.names.front());
  }
  return flags;
}

// ---- bash

/// Pattern of `case` for the names of a flag, in which '-' is already replaced by '_': "__epochs|__epoch".
std::string pattern(const CompletedFlag& flag) { return "__" + fmt::format("{}", fmt::join(flag.names, "|__")); }

/// The cases of the flags with a value: what to suggest for each.
std::string bash_cases(const CompletedProgram& program) {
  std::string text, free;
  for (const CompletedFlag& flag : program.flags) {
    if (!flag.takes_value) continue;
    if (flag.words.empty() && !flag.is_path) {
      free += (free.empty() ? "" : "|") + pattern(flag);
      continue;
    }
    text += fmt::format("    {})", pattern(flag));
    if (!flag.words.empty()) text += fmt::format(" words=\"{}\"", fmt::join(flag.words, " "));
    text += flag.is_path ? " paths=yes ;;\n" : " ;;\n";
  }
  if (!free.empty()) text += fmt::format("    {}) return ;;\n", free);
  return text;
}

std::string bash_lists(const CompletedProgram& program) {
  std::string lists;
  for (const CompletedFlag& flag : program.flags) {
    if (flag.takes_list) lists += (lists.empty() ? "" : "|") + pattern(flag);
  }
  return lists.empty() ? "" : fmt::format("    {}) ;;\n", lists);
}

// A flag's value follows it as another word or after '=', which bash makes a word of its own. Names take '-' or '_', so
// the flag is compared with '_' and completed with the sign that the user types.
constexpr char kBash[] = R"(# Completes {name}. Load it with: source <({program} --completion bash)
{function}() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" at=$((COMP_CWORD - 1)) flag="" words="" paths="" start path
  COMPREPLY=()
{dispatch}  [[ $current == "=" ]] && current=""
  [[ ${{COMP_WORDS[at]}} == "=" ]] && at=$((at - 1))
  for ((start = at; start > 0; start--)); do
    [[ ${{COMP_WORDS[start]}} == --* ]] && flag="${{COMP_WORDS[start]//-/_}}" && break
  done
  case "$flag" in
{lists}    *) [[ $start == "$at" ]] || flag="" ;;
  esac
  [[ $current == --* ]] && flag=""
  case "$flag" in
{cases}    *)
      words="{flags}"
{rest}      ;;
  esac
  [[ ${{current#--}} == *-* && $current == --* ]] && words="${{words//_/-}}"
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [[ -n $paths ]]; then
    compopt -o filenames 2>/dev/null
    while IFS= read -r path; do COMPREPLY+=("$path"); done < <(compgen -f -- "$current")
  fi
}}
{registration})";

constexpr char kBashDispatch[] = R"(  local command="{function}_${{COMP_WORDS[1]//-/_}}"
  if ((COMP_CWORD > 1)) && declare -F "$command" >/dev/null; then
    "$command"
    return
  fi
)";

std::string bash(const CompletedProgram& program) {
  const bool is_command = program.name.find(' ') != std::string::npos;
  const std::string function = function_name(program.name);
  std::string rest;
  if (!program.commands.empty()) {
    std::vector<std::string> names;
    for (const auto& command : program.commands) names.push_back(command.first);
    rest += fmt::format("      ((COMP_CWORD == 1)) && words=\"{} $words\"\n", fmt::join(names, " "));
  }
  if (program.takes_words) rest += "      [[ $current == -* ]] || paths=yes\n";
  return fmt::format(
      kBash, fmt::arg("name", program.name), fmt::arg("program", program.name.substr(0, program.name.find(' '))),
      fmt::arg("function", function),
      fmt::arg("dispatch", program.commands.empty() ? "" : fmt::format(kBashDispatch, fmt::arg("function", function))),
      fmt::arg("lists", bash_lists(program)), fmt::arg("cases", bash_cases(program)),
      fmt::arg("flags", fmt::format("{}", fmt::join(flags_with_dashes(program), " "))), fmt::arg("rest", rest),
      fmt::arg("registration", is_command ? "" : fmt::format("complete -F {} {}\n", function, program.name)));
}

// ---- zsh

/// Quotes a description for _arguments, within single quotes.
std::string zsh_text(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}, {"'", "'\\''"}});
}

std::string zsh_flag(const CompletedFlag& flag) {
  const std::string& name = flag.names.front();
  const std::string help = zsh_text(flag.help);
  if (!flag.takes_value) {
    std::string text = fmt::format("    '--{}[{}]'\n", name, help);
    if (flag.has_negation) text += fmt::format("    '--no_{}[not\\: {}]'\n", name, help);
    return text;
  }
  std::string action = flag.is_path ? "_files" : " ";
  if (!flag.words.empty() && !flag.is_path) action = fmt::format("({})", fmt::join(flag.words, " "));
  if (!flag.words.empty() && flag.is_path) {
    action = fmt::format("_alternative \"words\\:word\\:({})\" \"files\\:file\\:_files\"", fmt::join(flag.words, " "));
  }
  return fmt::format("    '--{}=[{}]:{}:{}'\n", name, help, name, action);
}

constexpr char kZsh[] = R"(# Completes {name}. Load it with: source <({program} --completion zsh)
{function}() {{
{dispatch}  local -a flags
  flags=(
{flags}{rest}  )
  _arguments $flags
}}
{registration})";

constexpr char kZshDispatch[] = R"(  local command="{function}_${{words[2]//-/_}}"
  if (( CURRENT > 2 && $+functions[$command] )); then
    shift words
    (( CURRENT-- ))
    $command
    return
  fi
)";

std::string zsh(const CompletedProgram& program) {
  const bool is_command = program.name.find(' ') != std::string::npos;
  const std::string function = function_name(program.name);
  std::string flags, rest;
  for (const CompletedFlag& flag : program.flags) flags += zsh_flag(flag);
  if (!program.commands.empty()) {
    std::string names;
    for (const auto& [name, summary] : program.commands) {
      names += fmt::format("{}\\:\"{}\" ", name, absl::StrReplaceAll(zsh_text(summary), {{"\"", ""}}));
    }
    rest += fmt::format("    '1:command:(({}))'\n", names);
  }
  if (program.takes_words) rest += "    '*:path:_files'\n";
  return fmt::format(
      kZsh, fmt::arg("name", program.name), fmt::arg("program", program.name.substr(0, program.name.find(' '))),
      fmt::arg("function", function),
      fmt::arg("dispatch", program.commands.empty() ? "" : fmt::format(kZshDispatch, fmt::arg("function", function))),
      fmt::arg("flags", flags), fmt::arg("rest", rest),
      fmt::arg("registration", is_command ? "" : fmt::format("compdef {} {}\n", function, program.name)));
}

/// The words of a placeholder such as "auto|cpu|cuda|cuda:N": its parts without capitals.
std::vector<std::string> words_of(const std::string& metavar) {
  std::vector<std::string> words;
  for (const absl::string_view part : absl::StrSplit(metavar, absl::ByAnyChar("| []"), absl::SkipEmpty())) {
    if (std::all_of(part.begin(), part.end(), [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; })) {
      words.emplace_back(part);
    }
  }
  return words;
}

}  // namespace

std::string completion_script(const std::string& shell, const CompletedProgram& program) {
  return shell == "zsh" ? zsh(program) : bash(program);
}

std::string completion_script(const ConfigParser::State& state) {
  CompletedProgram program{
      .name = state.program.name, .commands = state.program.commands, .takes_words = !state.program.words.empty()};
  for (const auto& option : state.options) {
    const bool is_bool = option->binding->is_bool();
    CompletedFlag flag{.names = option->spec.aliases,
                       .help = option->spec.help,
                       .words = option->spec.choices,
                       .is_path = option->spec.path != PathKind::kNone,
                       .takes_value = !is_bool && !option->is_switch,
                       .takes_list = option->binding->is_list(),
                       .has_negation = is_bool && !option->is_switch};
    flag.names.insert(flag.names.begin(), option->name);
    if (flag.words.empty()) flag.words = option->spec.path_words;
    if (flag.words.empty()) {
      flag.words =
          words_of(option->spec.metavar.empty() ? option->binding->metavar(option->spec) : option->spec.metavar);
    }
    if (option->name == "preset") {
      if (state.presets.empty()) continue;
      for (const Preset& preset : state.presets) flag.words.push_back(preset.name);
    }
    if (option->name == "help") {
      flag.takes_value = true;
      for (const std::string& group : state.groups()) flag.words.push_back(topic_name(group));
    }
    program.flags.push_back(std::move(flag));
  }
  return completion_script(state.completion, program);
}

}  // namespace trainkit::detail
