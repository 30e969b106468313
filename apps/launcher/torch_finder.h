#pragma once
/// Finds LibTorch on the machine that runs an installed program.

#include <string>
#include <vector>

namespace trainkit::launcher {

/// A LibTorch: a Python's torch package, or an unpacked LibTorch.
struct Torch {
  /// Folder of the torch package or of LibTorch. CMake finds the Torch package below it.
  std::string root = {};
  /// Folders of its shared libraries: lib of `root`, then those of the needed nvidia packages next to it.
  std::vector<std::string> folders = {};

  /// Returns the first of `folders` that contains this library; empty if none does.
  std::string folder_of(const std::string& library) const;
};

/// Result of a search: a LibTorch, or the problem as the text of an error without the word "error".
struct TorchSearch {
  bool found = false;
  Torch torch = {};
  std::string problem = {};
};

/// Finds a LibTorch. Searches, in this order, next to the program (`program_folder`), in the folder of the variable
/// TRAINKIT_TORCH, and in the torch package that python3 would import.
///
/// Skips a LibTorch of another version, or without a LibTorch library that is in `needed`. If TRAINKIT_TORCH names such
/// a LibTorch, the search ends with an error.
TorchSearch find_torch(const std::string& program_folder, const std::vector<std::string>& needed);

}  // namespace trainkit::launcher
