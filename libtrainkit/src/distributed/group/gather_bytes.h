#pragma once
// Gathers a few bytes of each rank.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "trainkit/distributed/process_group.h"

namespace trainkit::detail {

/// Gathers each rank's `mine`, 1-D uint8 of one size: (ranks, bytes) uint8, the same on all ranks. All-reduces zeros
/// with this rank's row filled in. `what` is for the errors of ProcessGroup. Blocks.
absl::StatusOr<at::Tensor> gather_bytes(ProcessGroup& group, const at::Tensor& mine, const std::string& what);

/// Gathers each rank's text, of any length: by rank, the same on all ranks. Blocks.
absl::StatusOr<std::vector<std::string>> gather_texts(ProcessGroup& group, const std::string& mine,
                                                      const std::string& what);

}  // namespace trainkit::detail
