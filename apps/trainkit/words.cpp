#include "trainkit/words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "trainkit/core/error.h"

namespace trainkit::tool {

absl::StatusOr<std::vector<std::string>> take_words(Arguments& arguments, const std::vector<std::string>& names) {
  std::vector<std::string>& flags = arguments.flags;
  const auto is_flag = [](const std::string& word) { return word.size() > 1 && word[0] == '-'; };
  const auto first_flag = std::find_if(flags.begin(), flags.end(), is_flag);
  std::vector<std::string> words(flags.begin(), first_flag);
  flags.erase(flags.begin(), first_flag);
  if (words.empty() && flags.size() > names.size() &&
      std::none_of(flags.end() - static_cast<int64_t>(names.size()), flags.end(), is_flag)) {
    words.assign(flags.end() - static_cast<int64_t>(names.size()), flags.end());
    flags.resize(flags.size() - names.size());
  }
  const bool only_asks = std::any_of(flags.begin(), flags.end(), [](const std::string& word) {
    return word == "--help" || word == "-h" || word == "--version" || word == "--print_config" ||
           word == "--print-config";
  });
  if (words.size() == names.size() || (words.empty() && only_asks)) return words;
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = words.size() < names.size() ? "cli.missing" : "cli.positional",
                    .field = fmt::format("{}", fmt::join(names, " ")),
                    .problem = "wrong number of arguments",
                    .got = fmt::format("{}", words.size()),
                    .expected = fmt::format("{}", names.size()),
                    .hint = "give them before the flags"});
}

}  // namespace trainkit::tool
