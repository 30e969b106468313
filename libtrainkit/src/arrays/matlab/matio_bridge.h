#pragma once
/// Writes version 5 with libmatio; no other file calls it. Version 5 is read without a library, version 7.3 with HDF5.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/arrays/mat.h"

namespace trainkit::detail {

/// Returns `tensor` with its dimensions reversed.
at::Tensor reverse_dims(const at::Tensor& tensor);

/// Returns a variable's tensor from its numbers in file order, in which MATLAB's first dimension varies fastest.
/// Logicals are uint8 there.
at::Tensor row_major(const at::Tensor& columns, const MatVariable& variable);

/// Loads libmatio and HDF5. Errors: those of LateLibrary::load.
absl::Status load_matio();

/// Writes `variables` to `path`. The caller has called load_matio(), and has checked that all of them can be stored.
absl::Status write_with_matio(const std::string& path, std::span<const std::pair<std::string, at::Tensor>> variables);

}  // namespace trainkit::detail
