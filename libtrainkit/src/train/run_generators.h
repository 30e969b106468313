#pragma once
// The random generators of a run in its checkpoints. Internal to Trainer.
//
// Every rank draws from LibTorch's generator on the CPU; a run on one GPU also from that of its GPU. Several replicas
// or ranks seed the generators of their devices from the CPU's in each step, so theirs need not be kept.
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

#include "trainkit/core/state_dict.h"
#include "trainkit/distributed/device_replicator.h"

namespace trainkit::detail {

/// "rng.cpu" and "rng.cuda.<replica>" of this process, and "rng_ranks", which every rank takes part in: a row of bytes
/// for each, the CPU's generator and that of its GPU behind it.
absl::StatusOr<StateDict> collect_generators(const DeviceReplicator& devices);

/// Puts the generators back, on any kind and number of devices, and refuses the same states on all ranks (exit code 5).
/// - The CPU's goes on where that of the rank was; a rank that is new begins with the first one's.
/// - The GPU's goes on where that of the rank's first GPU was. If it had none it begins anew, by `seed` and rank.
/// - What is left of the checkpoint, of GPUs that this run does not have, is not used.
absl::Status load_generators(const StateDict& state, const DeviceReplicator& devices, uint64_t seed);

/// "cuda" if the checkpoint is of a run on GPUs, else "cpu".
std::string kind_of_device(const StateDict& state);

}  // namespace trainkit::detail
