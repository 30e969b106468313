#pragma once
/// Uses a trained run: loads its weights and runs the model over a data set.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trainkit/data/prefetcher.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/train/loss.h"
#include "trainkit/train/train_step.h"

namespace trainkit {

/// Weights of a run on the disk.
struct RunWeights {
  /// Folder of the run.
  std::string run = {};
  std::string file = {};
  /// Optimizer step of the weights.
  int64_t step = 0;
  /// True for the weights of the best evaluation, false for those of a checkpoint.
  bool is_best = false;

  /// "weights of step 120, the best in validation (runs/a/best.safetensors)"
  std::string describe() const;
};

/// Finds the weights of a run. `path` is a run's folder, which gives the best weights where the run kept them and its
/// latest checkpoint otherwise; or its checkpoints/, checkpoints/latest or one step-..., which gives that checkpoint.
/// Reads no weights.
/// Errors (exit code 5): run.none if there is no such folder, or no run in it; run.weights for a run without weights.
absl::StatusOr<RunWeights> find_weights(const std::string& path);

struct PredictorOptions {
  /// One replica of the model on each; a CPU that is listed repeatedly has logical replicas.
  std::vector<at::Device> devices = {at::kCPU};
  Precision precision = Precision::kFp32;
  /// Loader of the rows. batch_size is the number of rows per device; `device` and drop_last are ignored. With OnError
  /// kSkip unreadable rows are left out.
  PrefetcherOptions loader = {.batch_size = 32};
  /// Called after each batch with the number of rows that are done, and of all rows. May be empty.
  std::function<void(int64_t done, int64_t total)> on_progress = {};
};

/// The rows of a data set as a part of more rows, for PredictorOptions::on_progress.
struct PartOfRows {
  /// Rows before those of the data set.
  int64_t before = 0;
  /// All rows; 0: the data set has all.
  int64_t total = 0;
};

/// A trained model in evaluation mode, on one or more devices. Computes no gradients and writes no files.
///
/// Preprocessing belongs to the caller: to the data set, which the loader's workers read, or to the function given to
/// run(), which runs on the model's device.
///
///   auto predictor = Predictor::open("runs/a", [] { return Classifier(64, 10); }, {.loader = {.batch_size = 256}});
///   predictor->run(rows, [](Classifier& model, const Batch& batch) { return model->forward(batch["x"]); },
///                  [&](const Batch& batch, const at::Tensor& output) { ...; return absl::OkStatus(); });
///
/// One thread owns the object and calls it.
class Predictor {
 public:
  /// Makes the model with `factory`, once per device, and loads the weights that find_weights(path) names. `factory` is
  /// that of DeviceReplicator::create. Errors: those of find_weights, verify_checkpoint, load_weights and
  /// DeviceReplicator::create.
  template <class Factory>
  static absl::StatusOr<Predictor> open(const std::string& path, Factory factory, PredictorOptions options = {}) {
    auto weights = find_weights(path);
    if (!weights.ok()) return weights.status();
    auto devices = DeviceReplicator::create(std::move(factory), replicas_on(options.devices));
    if (!devices.ok()) return devices.status();
    Predictor predictor(*std::move(weights), *std::move(devices), std::move(options));
    if (absl::Status loaded = predictor.load(); !loaded.ok()) return loaded;
    return predictor;
  }

  const RunWeights& weights() const { return weights_; }
  const PredictorOptions& options() const { return options_; }
  torch::nn::Module& model() const { return *devices_->module(); }
  at::Device device() const { return devices_->device(); }

  /// Computes the output of some rows on their device, in the chosen precision, without gradients.
  using Forward = std::function<at::Tensor(torch::nn::Module& model, const Batch& rows)>;
  /// Receives rows and their output, on the CPU. Called by the thread that calls run(). An error ends run().
  using Take = std::function<absl::Status(const Batch& rows, const at::Tensor& output)>;

  /// Calls `forward` for all rows of `dataset`, and `take` in the order of the data set, at most batch_size rows at a
  /// time. The rows of one call do not depend on the number of devices, and neither does the output. `forward` takes
  /// your own model (a module holder or its implementation); with several devices it is called from one thread for
  /// each. Returns the rows that could not be read (OnError::kSkip). Blocks.
  ///
  /// Errors: those of the loader and of `take`. Exceptions of `forward` propagate.
  template <class F>
  absl::StatusOr<std::vector<BadSample>> run(std::shared_ptr<const Dataset> dataset, F forward, const Take& take,
                                             const PartOfRows& part = {}) const {
    const Forward erased = detail::of_any_model(std::move(forward));
    return run_erased(std::move(dataset), erased, take, part);
  }

 private:
  Predictor(RunWeights weights, std::unique_ptr<DeviceReplicator> devices, PredictorOptions options)
      : weights_(std::move(weights)), devices_(std::move(devices)), options_(std::move(options)) {}
  static DeviceReplicatorOptions replicas_on(const std::vector<at::Device>& devices);
  absl::Status load();
  absl::StatusOr<std::vector<BadSample>> run_erased(std::shared_ptr<const Dataset> dataset, const Forward& forward,
                                                    const Take& take, const PartOfRows& part) const;
  at::Tensor compute(int64_t replica, const Batch& rows, const Forward& forward) const;

  RunWeights weights_;
  std::unique_ptr<DeviceReplicator> devices_;
  PredictorOptions options_;
};

}  // namespace trainkit
