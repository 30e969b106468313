#pragma once
/// How fast data-parallel training will be on more devices and machines than are at hand, from one measured step and
/// two figures per link. Pure arithmetic: docs/scaling.md has the formulas, their sources and how far they were right.

#include <absl/status/statusor.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace trainkit {

/// One link between neighbours: a message of b bytes takes latency + b / bandwidth.
/// Source: Hockney, The communication challenge for MPP, Parallel Computing 20 (1994).
struct Link {
  double latency_seconds = 0;
  double bytes_per_second = 0;
};

/// A link by name (link_names()), or measured as "<microseconds>,<GB per second>" ("12,20.5"; 1 GB is 1e9 bytes). The
/// named ones are starting points, nine tenths of the nominal bandwidth of one direction; `trainkit doctor` and
/// nccl-tests measure. kInvalidArgument (exit code 2) for anything else.
absl::StatusOr<Link> parse_link(std::string_view text);
std::vector<std::string_view> link_names();

enum class AllReduceAlgorithm {
  kBest,  ///< The faster of the two for each size, as NCCL chooses.
  kRing,  ///< Gloo's.
  kTree   ///< Two binary trees, each with half of the data.
};

/// `nodes` machines with `devices_per_node` devices each.
struct Cluster {
  int64_t devices_per_node = 1;
  int64_t nodes = 1;
  /// Between neighbours on one machine, and between machines (not looked at with one).
  Link inside = {};
  Link between = {};
  AllReduceAlgorithm algorithm = AllReduceAlgorithm::kBest;

  int64_t devices() const { return devices_per_node * nodes; }
};

/// Seconds of one all-reduce of `bytes` over all devices of `cluster`; 0 for a single one.
///
///   ring   2 (n - 1) (latency + bytes / n / bandwidth), with the slowest link of the ring
///   tree   2 (g - 1) latency_inside + 2 ceil(log2 m) latency_between + 2 bytes / bandwidth, g devices on each of m
///          machines (on one machine 2 ceil(log2 g) latency_inside), with the slowest link
///
/// Sources: Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009); Sanders, Speck and Träff, Parallel Computing 35
/// (2009), which NCCL's trees follow (2.4, 2019).
double all_reduce_seconds(int64_t bytes, const Cluster& cluster);

/// One optimizer step on one device.
struct StepProfile {
  /// Whatever comes before the last backward.
  double forward_seconds = 0;
  /// The last backward, during which the buckets are reduced.
  double backward_seconds = 0;
  /// Optimizer, and whatever else is neither.
  double update_seconds = 0;
  /// Gradients in the order in which backward completes them, in the portions in which they are reduced.
  std::vector<int64_t> bucket_bytes = {};

  double seconds() const { return forward_seconds + backward_seconds + update_seconds; }
};

struct StepProfileOptions {
  /// Largest bucket; the first holds 1 MiB. Source: torch.nn.parallel.DistributedDataParallel (PyTorch 2.11),
  /// bucket_cap_mb = 25.
  int64_t bucket_bytes = 25 << 20;
  /// Share of the step that is neither forward nor backward.
  double update_share = 0.05;
  /// Forward and backward passes per step (gradient accumulation): buckets are reduced in the last one alone.
  int64_t micro_steps = 1;
};

/// A step of which only the whole is known: of what `update_share` leaves, backward takes two thirds, for it computes
/// two matrix products (the gradients of the input and of the weights) where forward computes one.
StepProfile make_step_profile(double step_seconds, int64_t gradient_bytes, const StepProfileOptions& options = {});

struct ScalingOptions {
  /// Every device keeps its batch and the global batch grows (weak scaling); false: the global batch is divided among
  /// the devices, and forward and backward shrink with it (strong scaling).
  bool batch_grows = true;
  /// How much slower backward goes while a bucket is reduced, 0 to 1: 0 if communication costs the device nothing, 1
  /// if it takes its processor (CPU ranks on as many cores).
  double interference = 0;
  /// Extra compute time per further device on the same machine, as a share: what devices that share memory, power or
  /// storage take from one another.
  double contention = 0;
};

/// One line of a prediction.
struct ScalingPrediction {
  int64_t devices = 1;
  double step_seconds = 0;
  /// All-reduce of all buckets, and the part of it that backward does not hide.
  double communication_seconds = 0;
  double exposed_seconds = 0;
  /// Rows per second against one device; divided by the number of devices, the efficiency.
  double speedup = 1;
  double efficiency = 1;
};

/// The step on `cluster`. Buckets go one after the other, each once backward has completed it (its share of backward is
/// its share of the bytes); the optimizer waits for the last.
ScalingPrediction predict_scaling(const StepProfile& step, const Cluster& cluster, const ScalingOptions& options = {});

/// The link that two measured all-reduces over `devices` in a ring speak of: a small one for the latency, a large one
/// for the bandwidth. kInvalidArgument if the large one was not slower.
absl::StatusOr<Link> fit_link(int64_t devices, int64_t small_bytes, double small_seconds, int64_t large_bytes,
                              double large_seconds);

}  // namespace trainkit
