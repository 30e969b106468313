#pragma once
/// Whether a program can write to a folder.

#include <string>

namespace trainkit::detail {

/// Tries to write to the folder `path`, or to the nearest folder above it that exists: creates a folder there and
/// removes it. Returns 0, or the errno of the first call that failed.
int try_folder(const std::string& path);

}  // namespace trainkit::detail
