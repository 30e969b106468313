#pragma once
/// Lists the files of a folder of data, and the entries that are left out.

#include <set>
#include <string>
#include <system_error>
#include <vector>

namespace trainkit {

/// Files directly in a folder.
struct FolderFiles {
  /// Names, sorted. A link counts as the file that it points to.
  std::vector<std::string> names = {};
  /// Other entries with the reason, sorted: "notes (a folder)".
  std::vector<std::string> left_out = {};
};

/// Lists regular files and links to regular files. With `extensions` (lower case: ".mp4", ".csv.gz") only files of
/// these kinds, in upper or lower case. Left out: folders and links to them, links without a target or in a circle,
/// links to a file that is listed already, hidden entries, other extensions, and special files. Sets `error` if the
/// folder cannot be read.
FolderFiles list_files(const std::string& folder, const std::set<std::string>& extensions, std::error_code& error);

/// Returns "3 entries left out: a (hidden), b (a folder) and 1 more"; empty if there are none.
std::string left_out_note(const std::vector<std::string>& left_out);

}  // namespace trainkit
