#pragma once
/// Where LibTorch is on the machine that runs an installed program.

#include <string>
#include <vector>

namespace trainkit::launcher {

/// A LibTorch: the torch package of a Python, or an unpacked LibTorch.
struct Torch {
  /// The torch package, or the folder of LibTorch; CMake finds the Torch package below it.
  std::string root = {};
  /// The folders of its shared libraries: lib of `root`, then those of the nvidia packages beside it that are needed.
  std::vector<std::string> folders = {};

  /// The first of `folders` that has this library; empty if none has.
  std::string folder_of(const std::string& library) const;
};

/// The result of a search: a LibTorch, or the reason there is none, as the text of an error without "error".
struct TorchSearch {
  bool found = false;
  Torch torch = {};
  std::string problem = {};
};

/// Looks next to the program (folder `program_folder`), in the folder that TRAINKIT_TORCH names, and in the torch
/// package that python3 would import, in this order. A LibTorch of another version, or without a library of `needed`
/// that LibTorch ships, is passed over; where TRAINKIT_TORCH names it, the search ends with an error.
TorchSearch find_torch(const std::string& program_folder, const std::vector<std::string>& needed);

}  // namespace trainkit::launcher
