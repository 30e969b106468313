// The words of a command line that belong to no flag: ProgramInfo::words.
#include <absl/strings/str_split.h>

#include <algorithm>

#include "config/command_line.h"
#include "config/parser_state.h"
#include "trainkit/config/config.h"
#include "trainkit/core/error.h"

namespace trainkit {
namespace {

bool is_word(const std::string& argument) { return argument.size() < 2 || argument[0] != '-'; }

bool has_one(const std::vector<std::string>& arguments, std::initializer_list<std::string_view> flags) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const std::string& argument) {
    return std::find(flags.begin(), flags.end(), argument.substr(0, argument.find('='))) != flags.end();
  });
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ConfigParser::take_words(std::vector<std::string>& arguments) const {
  const ProgramInfo& program = state_->program;
  const std::vector<std::string> names = absl::StrSplit(program.words, ' ');
  const bool is_open = program.words.find("...") != std::string::npos;
  const bool asks_help = has_one(arguments, {"--help", "-h", "--version", "--completion"});
  const bool needs_none = asks_help || has_one(arguments, {"--print_config", "--print-config"});
  const auto count = static_cast<ptrdiff_t>(names.size());
  const auto takes_next = [&](const std::string& argument) {
    const detail::Option* option = is_word(argument) ? nullptr : state_->find(argument.substr(2));
    return option != nullptr && !option->is_switch && !option->binding->is_bool();
  };
  auto first = arguments.begin(), last = std::find_if_not(first, arguments.end(), is_word);
  if (first == last && !needs_none && !is_open && std::ssize(arguments) > count &&
      std::all_of(arguments.end() - count, arguments.end(), is_word) && !takes_next(arguments.end()[-count - 1])) {
    first = arguments.end() - count, last = arguments.end();
  }
  std::vector<std::string> words(first, last);
  arguments.erase(first, last);
  if (asks_help || (needs_none && words.empty())) return std::vector<std::string>();
  const size_t least = is_open ? 1 : names.size();
  const bool is_missing = words.size() < least;
  if (!is_missing && (is_open || words.size() == least)) return words;
  return detail::flag_error("word", is_missing ? names[words.size()] : escape_text(words[least]),
                            {.problem = is_missing ? "not given" : "unexpected argument",
                             .expected = is_missing ? "" : program.words,
                             .hint = program.name + " " + program.words + ": words come before flags"});
}

}  // namespace trainkit
