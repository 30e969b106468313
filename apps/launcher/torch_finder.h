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

/// A program that was built for a series of LibTorch.
struct Program {
  /// "2.11"
  std::string series = {};
  /// Its file.
  std::string path = {};
  /// Folder of libraries that replace those of CUDA where LibTorch has none; it may not exist.
  std::string without_cuda = {};
  /// The shared libraries that it needs.
  std::vector<std::string> needed = {};
};

/// Result of a search: a LibTorch and the program for it, or the problem as the text of an error without the word
/// "error".
struct TorchSearch {
  bool found = false;
  Torch torch = {};
  Program program = {};
  std::string problem = {};
};

/// Finds a LibTorch. Searches, in this order, next to the program (`program_folder`), in the folder of the variable
/// TRAINKIT_TORCH, and in the torch package that python3 would import.
///
/// Skips a LibTorch whose version none of `programs` (at least one, oldest first) was built for, one of conda-forge or
/// of a distribution, and one without a library that the program needs. If TRAINKIT_TORCH names such a LibTorch, the
/// search ends with an error.
TorchSearch find_torch(const std::string& program_folder, const std::vector<Program>& programs);

}  // namespace trainkit::launcher
