#pragma once
/// Files, for the launcher: no std::filesystem, which would make it five times as large.

#include <string>
#include <vector>

namespace trainkit::launcher {

/// The path without links; empty if it does not exist.
std::string real_path(const std::string& path);

/// The folder that holds `path`; empty for one without '/'.
std::string parent(const std::string& path);

bool exists(const std::string& path);

/// The content of a file; empty if it cannot be read.
std::string read_file(const std::string& path);

/// The paths that match a pattern of the shell, sorted.
std::vector<std::string> matches(const std::string& pattern);

/// The shared libraries that an ELF file names in its dynamic section (DT_NEEDED); none for another kind of file.
/// Source: elf(5).
std::vector<std::string> needed_libraries(const std::string& file);

}  // namespace trainkit::launcher
