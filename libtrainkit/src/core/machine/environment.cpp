#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "trainkit/core/error.h"
#include "trainkit/core/processors.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

/// Known variables, without the prefix TRAINKIT_. TRAINKIT_TEST_* and TRAINKIT_BENCH_* belong to tests and benchmarks.
constexpr std::array<std::string_view, 6> kKnownNames = {"LAUNCH_ID",     "PYTHON", "JOBS",
                                                         "ONEDNN_MATMUL", "TORCH",  "CONVOLUTION"};
constexpr rlim_t kMinOpenFiles = 64;

absl::Status value_error(std::string_view name, std::string problem, std::string_view got, std::string expected,
                         std::string hint = {}) {
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "env.value",
                    .field = std::string(name),
                    .problem = std::move(problem),
                    .got = std::string(got),
                    .expected = std::move(expected),
                    .hint = std::move(hint)});
}

/// Accepts "4", and "4,2" for nested loops (OpenMP 5.2, section 21.1.2).
bool are_thread_numbers(std::string_view text) {
  while (true) {
    const std::string_view part = text.substr(0, text.find(','));
    int number = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    if (error != std::errc() || end != part.data() + part.size() || number < 1 || number > 4096) return false;
    if (part.size() == text.size()) return true;
    text.remove_prefix(part.size() + 1);
  }
}

absl::Status check_names(const EnvironmentVariables& variables) {
  constexpr std::string_view kPrefix = "TRAINKIT_";
  for (auto entry = variables.lower_bound(kPrefix); entry != variables.end(); ++entry) {
    const std::string& name = entry->first;
    if (!name.starts_with(kPrefix)) break;
    const std::string_view rest = std::string_view(name).substr(kPrefix.size());
    if (rest.starts_with("TEST_") || rest.starts_with("BENCH_")) continue;
    if (std::find(kKnownNames.begin(), kKnownNames.end(), rest) != kKnownNames.end()) continue;
    const std::string nearest = nearest_name(rest, kKnownNames);
    return value_error(name, "unknown variable", "", "",
                       nearest.empty() ? "settings are flags, see --help; unset " + name
                                       : "did you mean " + std::string(kPrefix) + nearest + "?");
  }
  return absl::OkStatus();
}

}  // namespace

EnvironmentVariables environment_variables() {
  EnvironmentVariables variables;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text(*entry);
    const size_t mark = text.find('=');
    // getenv returns the first of two entries with the same name, and so does try_emplace.
    if (mark != std::string_view::npos) variables.try_emplace(std::string(text.substr(0, mark)), text.substr(mark + 1));
  }
  return variables;
}

absl::Status check_environment(const EnvironmentVariables& variables) {
  TRAINKIT_RETURN_IF_ERROR(check_names(variables));
  if (const auto threads = variables.find("OMP_NUM_THREADS");
      threads != variables.end() && !are_thread_numbers(threads->second))
    return value_error("OMP_NUM_THREADS", "is not a number of threads", threads->second, "1..4096");
  if (const auto folder = variables.find("TMPDIR"); folder != variables.end() && !folder->second.empty()) {
    struct stat info {};
    if (stat(folder->second.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))
      return value_error("TMPDIR", "folder does not exist", folder->second, "a folder",
                         "create it, or unset TMPDIR to use /tmp");
  }
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < kMinOpenFiles) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "env.limit",
                      .field = "open files",
                      .problem = "the limit is too low",
                      .got = std::to_string(files.rlim_cur),
                      .expected = std::to_string(kMinOpenFiles) + " or more",
                      .hint = "run: ulimit -n 1024"});
  }
  return absl::OkStatus();
}

}  // namespace trainkit
