#include "core/files/new_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <utility>

#include "trainkit/core/error.h"

namespace trainkit::detail {
namespace {

namespace fs = std::filesystem;

struct Watched {
  fs::path folder;
  FileWatcher watcher;
};

std::mutex& mutex() {
  static std::mutex made;
  return made;
}

std::shared_ptr<const Watched>& watched() {
  static auto* const made = new std::shared_ptr<const Watched>;
  return *made;
}

fs::path normal(const fs::path& path) {
  std::error_code failed;
  const fs::path absolute = fs::absolute(path, failed);
  return (failed ? path : absolute).lexically_normal();
}

}  // namespace

absl::Status foreign_file(const std::string& path, const std::string& problem, const std::string& hint) {
  return to_status(
      {.exit_code = ExitCode::kUsage, .id = "storage.foreign", .where = path, .problem = problem, .hint = hint},
      absl::StatusCode::kAlreadyExists);
}

bool begins_with(const std::string& path, const std::vector<std::string>& begins) {
  size_t longest = 1;
  for (const std::string& begin : begins) longest = std::max(longest, begin.size());
  std::error_code failed;
  if (!fs::is_regular_file(path, failed)) return false;
  std::ifstream file(path, std::ios::binary);
  if (!file) return false;
  std::string found(longest, '\0');
  file.read(found.data(), static_cast<std::streamsize>(found.size()));
  found.resize(static_cast<size_t>(file.gcount()));
  return found.empty() ||
         std::any_of(begins.begin(), begins.end(), [&](const std::string& begin) { return found.starts_with(begin); });
}

void watch_written_files(const std::string& folder, FileWatcher watcher) {
  auto made = std::make_shared<const Watched>(Watched{normal(folder + "/"), std::move(watcher)});
  const std::lock_guard lock(mutex());
  watched() = std::move(made);
}

void report_written_file(const std::string& path, const std::string& digest) {
  std::shared_ptr<const Watched> watched_now;
  {
    const std::lock_guard lock(mutex());
    watched_now = watched();
  }
  if (!watched_now) return;
  const std::string file = normal(path).string(), folder = watched_now->folder.string();
  if (file.starts_with(folder)) watched_now->watcher(file.substr(folder.size()), digest);
}

}  // namespace trainkit::detail

namespace trainkit {

absl::Status check_replaced(const std::string& flag, const std::string& path, const std::vector<std::string>& begins,
                            const std::string& kind) {
  std::error_code ignored;
  if (path.empty() || !std::filesystem::is_regular_file(path, ignored) || detail::begins_with(path, begins))
    return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "cli.value",
                    .where = flag,
                    .problem = "the file exists and is not " + kind,
                    .got = path,
                    .expected = "a new file, or an earlier one of these"});
}

}  // namespace trainkit
