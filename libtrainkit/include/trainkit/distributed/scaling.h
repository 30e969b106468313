#pragma once
/// Predicts data-parallel speed on more devices and machines from one measured step and two numbers per link. Pure
/// arithmetic; docs/scaling.md has the formulas, their sources and the measured accuracy.

#include <absl/status/statusor.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace trainkit {

/// Models one link between neighbours: a message of b bytes takes latency + b / bandwidth. Source: Hockney, The
/// communication challenge for MPP, Parallel Computing 20 (1994).
struct Link {
  double latency_seconds = 0;
  double bytes_per_second = 0;
};

/// Parses a link name (link_names()) or a measurement "<microseconds>,<GB per second>" ("12,20.5"; 1 GB is 1e9 bytes).
/// Named links assume nine tenths of the nominal bandwidth of one direction; measure yours with `trainkit doctor` or
/// nccl-tests. kInvalidArgument (exit code 2) for any other text.
absl::StatusOr<Link> parse_link(std::string_view text);
std::vector<std::string_view> link_names();

enum class AllReduceAlgorithm {
  kBest,  ///< The faster of the two for each size, as NCCL chooses.
  kRing,  ///< Ring, as in Gloo.
  kTree   ///< Two binary trees, each with half of the data.
};

/// Describes `nodes` machines with `devices_per_node` devices each.
struct Cluster {
  int64_t devices_per_node = 1;
  int64_t nodes = 1;
  /// Link between neighbours on one machine, and link between machines (ignored for one machine).
  Link inside = {};
  Link between = {};
  AllReduceAlgorithm algorithm = AllReduceAlgorithm::kBest;

  int64_t devices() const { return devices_per_node * nodes; }
};

/// Returns the seconds of one all-reduce of `bytes` over all devices of `cluster`; 0 for a single device.
///
///   ring   2 (n - 1) (latency + bytes / n / bandwidth), with the slowest link of the ring
///   tree   2 (g - 1) latency_inside + 2 ceil(log2 m) latency_between + 2 bytes / bandwidth, g devices on each of m
///          machines (on one machine 2 ceil(log2 g) latency_inside), with the slowest link
///
/// Sources: Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009); Sanders, Speck and Träff, Parallel Computing 35
/// (2009), the basis of NCCL's trees (2.4, 2019).
double all_reduce_seconds(int64_t bytes, const Cluster& cluster);

/// Returns the seconds of one reduce-scatter of `bytes` over all devices, or of one all-gather: half of a ring
/// all-reduce.
double reduce_scatter_seconds(int64_t bytes, const Cluster& cluster);

/// Describes one optimizer step on one device.
struct StepCost {
  /// Seconds before the last backward.
  double forward_seconds = 0;
  /// Seconds of the last backward, during which the buckets are reduced.
  double backward_seconds = 0;
  /// Seconds of the optimizer and of all other work.
  double update_seconds = 0;
  /// Bytes of the gradient buckets, in the order in which backward completes them.
  std::vector<int64_t> bucket_bytes = {};

  double seconds() const { return forward_seconds + backward_seconds + update_seconds; }
};

struct StepCostOptions {
  /// Largest bucket; the first holds 1 MiB. Source: torch.nn.parallel.DistributedDataParallel (PyTorch 2.11),
  /// bucket_cap_mb = 25.
  int64_t bucket_bytes = 25 << 20;
  /// Share of the step outside forward and backward.
  double update_share = 0.05;
  /// Forward and backward passes per step (gradient accumulation). Only the last one reduces buckets.
  int64_t micro_steps = 1;
};

/// Splits the measured time of a whole step. `update_share` goes to the update, and two thirds of the rest to backward:
/// it computes two matrix products (gradients of input and weights) where forward computes one.
StepCost make_step_cost(double step_seconds, int64_t gradient_bytes, const StepCostOptions& options = {});

struct ScalingOptions {
  /// Keep the batch per device, so that the global batch grows (weak scaling). false divides the global batch among the
  /// devices, and forward and backward shrink with it (strong scaling).
  bool batch_grows = true;
  /// Slowdown of backward while a bucket is reduced, 0 to 1. 0: communication costs the device nothing; 1: it uses the
  /// whole processor (CPU ranks on as many cores).
  double interference = 0;
  /// Extra compute time per additional device on the same machine, as a share: the cost of shared memory, power or
  /// storage.
  double contention = 0;
  /// Devices divide the training state (--shard): gradients are reduce-scattered during backward, the update takes 1/n
  /// of its time, and a bucket of weights is all-gathered while the next ones are updated.
  bool shards = false;
  /// Backward passes per step that reduce gradients: with --shard gradients all micro-batches.
  int64_t reductions = 1;
  /// Steps are CUDA graphs, with the status all-reduce of the ranks (a few numbers) on the devices.
  bool graphs = false;
};

/// One row of a prediction.
struct ScalingPrediction {
  int64_t devices = 1;
  double step_seconds = 0;
  /// Collectives per step, and bytes that each device sends in them, without those of single numbers (the logged loss).
  int64_t messages = 0;
  int64_t sent_bytes = 0;
  /// Seconds of these collectives, and the part that backward does not hide.
  double communication_seconds = 0;
  double exposed_seconds = 0;
  /// Rows per second relative to one device; efficiency is the speedup divided by the number of devices.
  double speedup = 1;
  double efficiency = 1;
};

/// Predicts the step on `cluster`. Buckets are reduced one after another, each once backward has completed it (its
/// share of backward is its share of the bytes). The optimizer waits for the last bucket.
ScalingPrediction predict_scaling(const StepCost& step, const Cluster& cluster, const ScalingOptions& options = {});

/// Fits latency and bandwidth to two measured ring all-reduces over `devices`: a small one for the latency, a large one
/// for the bandwidth. kInvalidArgument if the large one was not slower.
absl::StatusOr<Link> fit_link(int64_t devices, int64_t small_bytes, double small_seconds, int64_t large_bytes,
                              double large_seconds);

}  // namespace trainkit
