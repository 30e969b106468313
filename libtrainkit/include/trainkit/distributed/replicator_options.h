#pragma once
/// Options of DeviceReplicator: where a model is placed, and what its replicas divide.

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "trainkit/distributed/process_group.h"

namespace trainkit {

/// Selects how the model is placed on devices.
enum class Strategy {
  kAuto,  ///< kDistributed with a process group; kDataParallel if gpu_ids names several GPUs or cpu_replicas > 1; else
          ///< kSingle. For all GPUs set kDataParallel.
  kSingle,        ///< One model on one device.
  kDataParallel,  ///< One process with one replica and one thread per device.
  kDistributed    ///< One process per device.
};

/// Selects the dtype in which gradients are sent between processes. Sums are computed in that dtype.
enum class GradientCompression { kNone, kFp16, kBf16 };

/// Selects what each rank of kDistributed, or each GPU of kDataParallel, keeps of the training state (ZeRO stages 1 and
/// 2). Weights are whole on each of them. Bytes per parameter in float32 with AdamW, on `n` ranks or GPUs:
///   kNone       4 weight + 4 gradient + 8 state
///   kOptimizer  4 weight + 4 gradient + 8 / n
///   kGradients  4 weight + (4 + 8) / n, and up to two buckets of gradients
/// Each rank updates its part of the weights and sends it to the others. Gradients are reduce-scattered during backward
/// and weights all-gathered after the update, which sends as many bytes as the all-reduce of kNone. With kGradients
/// every micro-batch is reduced.
enum class Sharding { kNone, kOptimizer, kGradients };

struct DeviceReplicatorOptions {
  Strategy strategy = Strategy::kAuto;
  /// Device of the model. kDataParallel uses only its type and ignores the index. If unset: the device of the process
  /// group; else the first GPU (of gpu_ids) if there is one and cpu_replicas is 1; else the CPU.
  /// DeviceReplicator::device() returns the choice.
  std::optional<at::Device> device = std::nullopt;
  /// GPUs of kDataParallel on CUDA, in the order of the replicas. Empty means all visible GPUs.
  std::vector<int64_t> gpu_ids = {};
  /// Number of logical replicas of kDataParallel on the CPU. The intra-op threads are divided among them.
  int64_t cpu_replicas = 1;
  /// Replicas on one device share the memory of their weights, so that the optimizer updates one copy. false gives each
  /// replica its own weights, as on several devices.
  bool share_weights = true;
  /// Whether the model's SyncBatchNorm layers normalise with the rows of all replicas (true) or of their own replica
  /// (false). Unset leaves each layer as its options say. True gives the results of one device, but all replicas meet
  /// at each such layer, once in forward and once in backward.
  std::optional<bool> sync_batch_norm = std::nullopt;

  /// Ranks of kDistributed.
  std::shared_ptr<ProcessGroup> process_group = nullptr;
  GradientCompression gradient_compression = GradientCompression::kNone;
  /// What the ranks, or the GPUs of kDataParallel, divide among them. Not with find_unused_parameters, nor with
  /// kDataParallel on the CPU. One device keeps everything. TrainStep gives each optimizer its part.
  Sharding sharding = Sharding::kNone;
  /// Size of the buckets in which gradients are reduced during backward (kDistributed, and kDataParallel on GPUs). The
  /// first bucket is small, so that communication starts early. Defaults of
  /// torch.nn.parallel.DistributedDataParallel.
  int64_t bucket_bytes = 25 << 20;
  int64_t first_bucket_bytes = 1 << 20;
  /// Allows parameters without a gradient in a step (kDistributed). Costs one traversal of the autograd graph per step.
  bool find_unused_parameters = false;
};

}  // namespace trainkit
