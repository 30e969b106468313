#include "trainkit/words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "report/report.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::tool {
namespace {

bool is_flag(const std::string& word) { return word.size() > 1 && word[0] == '-'; }

/// Whether the flags ask for text instead of work.
bool only_asks(const std::vector<std::string>& flags) {
  return std::any_of(flags.begin(), flags.end(), [](const std::string& word) {
    const std::string flag = word.substr(0, word.find('='));
    return flag == "--help" || flag == "-h" || flag == "--version" || flag == "--completion" ||
           flag == "--print_config" || flag == "--print-config";
  });
}

}  // namespace

absl::StatusOr<std::vector<std::string>> take_words(Arguments& arguments, const std::vector<std::string>& names) {
  std::vector<std::string>& flags = arguments.flags;
  const auto first_flag = std::find_if(flags.begin(), flags.end(), is_flag);
  std::vector<std::string> words(flags.begin(), first_flag);
  flags.erase(flags.begin(), first_flag);
  if (words.empty() && !only_asks(flags) && flags.size() > names.size() &&
      std::none_of(flags.end() - static_cast<int64_t>(names.size()), flags.end(), is_flag)) {
    words.assign(flags.end() - static_cast<int64_t>(names.size()), flags.end());
    flags.resize(flags.size() - names.size());
  }
  if (words.size() == names.size() || (words.empty() && only_asks(flags))) return words;
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = words.size() < names.size() ? "cli.missing" : "cli.positional",
                    .field = fmt::format("{}", fmt::join(names, " ")),
                    .problem = "wrong number of arguments",
                    .got = fmt::format("{}", words.size()),
                    .expected = fmt::format("{}", names.size()),
                    .hint = "give them before the flags"});
}

absl::StatusOr<std::vector<std::string>> take_all_words(Arguments& arguments, const std::string& name) {
  std::vector<std::string>& flags = arguments.flags;
  const auto first_flag = std::find_if(flags.begin(), flags.end(), is_flag);
  std::vector<std::string> words(flags.begin(), first_flag);
  flags.erase(flags.begin(), first_flag);
  if (!words.empty() || only_asks(flags)) return words;
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "cli.missing",
                    .field = name,
                    .problem = "not given",
                    .expected = "at least one, before the flags"});
}

absl::StatusOr<std::vector<std::string>> runs_of(const std::vector<std::string>& folders) {
  std::vector<std::string> runs;
  for (const std::string& folder : folders) {
    TRAINKIT_ASSIGN_OR_RETURN(const std::vector<std::string> found, trainkit::detail::find_runs(folder));
    for (const std::string& run : found) {
      if (std::find(runs.begin(), runs.end(), run) == runs.end()) runs.push_back(run);
    }
  }
  return runs;
}

}  // namespace trainkit::tool
