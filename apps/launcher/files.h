#pragma once
/// File functions of the launcher. They avoid std::filesystem, which would make the launcher five times as large.

#include <string>
#include <vector>

namespace trainkit::launcher {

/// Resolves all symbolic links in a path. Returns an empty string if it does not exist.
std::string real_path(const std::string& path);

/// Returns the parent folder of `path`; empty without '/'.
std::string parent(const std::string& path);

/// Returns whether `path` exists and can be read.
bool exists(const std::string& path);

/// Returns the content of a file; empty if it cannot be read.
std::string read_file(const std::string& path);

/// Returns the paths that match a shell pattern (glob), sorted.
std::vector<std::string> matches(const std::string& pattern);

/// Returns the shared libraries that a 64-bit ELF file needs (DT_NEEDED in its dynamic section); empty for other files.
/// Source: elf(5).
std::vector<std::string> needed_libraries(const std::string& file);

}  // namespace trainkit::launcher
