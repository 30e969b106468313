#pragma once
// Saves and restores the random generators of a run in its checkpoints. Internal to Trainer.
//
// Every rank draws from LibTorch's CPU generator; a run on one GPU also draws from that GPU's generator. With several
// replicas or ranks each step seeds the devices' generators from the CPU generator, so theirs are not needed.
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

#include "trainkit/core/state_dict.h"
#include "trainkit/distributed/device_replicator.h"

namespace trainkit::detail {

/// Collects "rng.cpu" and "rng.cuda.<replica>" of this process, and "rng_ranks": one row of bytes per rank, its CPU
/// generator followed by its GPU generator. Every rank must call it.
absl::StatusOr<StateDict> collect_generators(const DeviceReplicator& devices);

/// Restores the generators, on any kind and number of devices. All ranks reject the same states (exit code 5).
/// - The CPU generator continues from the state of the same rank; a new rank starts from the first rank's state.
/// - The GPU generator continues from the state of the rank's first GPU. Without one it is seeded from `seed` and rank.
/// - States of GPUs that this run does not have are ignored.
absl::Status load_generators(const StateDict& state, const DeviceReplicator& devices, uint64_t seed);

/// Returns "cuda" if the checkpoint was written on GPUs, else "cpu".
std::string kind_of_device(const StateDict& state);

}  // namespace trainkit::detail
