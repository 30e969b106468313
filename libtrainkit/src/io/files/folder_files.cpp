#include "trainkit/io/folder_files.h"

#include <absl/strings/ascii.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>

namespace trainkit {
namespace {

namespace fs = std::filesystem;

/// Returns why an entry is no file of data; empty for a file or a link to one.
std::string reason_against(const fs::directory_entry& entry, const std::set<std::string>& extensions) {
  std::error_code error;
  if (entry.path().filename().string().starts_with(".")) return "hidden";
  const bool is_link = entry.is_symlink(error);
  const fs::file_status status = entry.status(error);
  if (is_link && !fs::exists(status)) return "a link without a target";
  if (fs::is_directory(status)) return is_link ? "a link to a folder" : "a folder";
  if (!fs::is_regular_file(status)) return is_link ? "a link to no regular file" : "no regular file";
  const std::string name = absl::AsciiStrToLower(entry.path().filename().string());
  const bool has_one = std::any_of(extensions.begin(), extensions.end(),
                                   [&](const std::string& extension) { return name.ends_with(extension); });
  return extensions.empty() || has_one ? "" : "another extension";
}

}  // namespace

FolderFiles list_files(const std::string& folder, const std::set<std::string>& extensions, std::error_code& error) {
  FolderFiles found;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) entries.push_back(*at);
  // Files before links to them.
  std::error_code ignored;
  std::sort(entries.begin(), entries.end(), [&](const fs::directory_entry& a, const fs::directory_entry& b) {
    return std::pair(a.is_symlink(ignored), a.path()) < std::pair(b.is_symlink(ignored), b.path());
  });
  std::map<fs::path, std::string> names;  // by canonical path
  for (const fs::directory_entry& entry : entries) {
    const std::string name = entry.path().filename().string();
    std::string reason = reason_against(entry, extensions);
    if (reason.empty()) {
      const auto [other, is_new] = names.emplace(fs::canonical(entry.path(), ignored), name);
      if (!is_new) reason = "a link to the file of " + other->second;
    }
    if (reason.empty()) {
      found.names.push_back(name);
    } else {
      found.left_out.push_back(fmt::format("{} ({})", name, reason));
    }
  }
  std::sort(found.names.begin(), found.names.end());
  std::sort(found.left_out.begin(), found.left_out.end());
  return found;
}

std::string left_out_note(const std::vector<std::string>& left_out) {
  constexpr size_t kShown = 3;
  if (left_out.empty()) return {};
  const size_t shown = std::min(kShown, left_out.size());
  const size_t more = left_out.size() - shown;
  return fmt::format("{} {} left out: {}{}", left_out.size(), left_out.size() == 1 ? "entry" : "entries",
                     fmt::join(left_out.begin(), left_out.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace trainkit
