#include "trainkit/app/predictor.h"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "trainkit/amp/autocast.h"
#include "trainkit/app/placement.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/weights.h"

namespace trainkit {
namespace {

constexpr char kConfigFile[] = "/config.yaml";
constexpr char kBestFile[] = "/best.safetensors";

absl::Status run_error(const std::string& id, const std::string& path, const std::string& problem,
                       const std::string& expected, const std::string& hint = "") {
  return to_status({.exit_code = ExitCode::kWeights,
                    .id = "run." + id,
                    .where = path,
                    .problem = problem,
                    .expected = expected,
                    .hint = hint},
                   absl::StatusCode::kNotFound);
}

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

/// Returns the step in the metadata of the best weights.
absl::StatusOr<int64_t> step_of_best(const std::string& file) {
  TRAINKIT_ASSIGN_OR_RETURN(const SafetensorsFile best, SafetensorsFile::open(file));
  const auto found = best.metadata().find("step");
  const std::string text = found == best.metadata().end() ? "" : found->second;
  int64_t step = -1;
  std::from_chars(text.data(), text.data() + text.size(), step);
  return step;
}

/// Returns the parts of `batch` that one device computes at a time: rows whose numbers lie between the same multiples
/// of `batch_size`. A skipped row does not move the rows after it to another part.
std::vector<Batch> parts_of(const Batch& batch, int64_t batch_size) {
  std::vector<Batch> parts;
  const auto rows = batch.row_indices();
  for (int64_t begin = 0; begin < batch.size();) {
    const int64_t next = (rows[static_cast<size_t>(begin)] / batch_size + 1) * batch_size;
    const int64_t end = std::lower_bound(rows.begin() + begin, rows.end(), next) - rows.begin();
    parts.push_back(batch.slice(begin, end));
    begin = end;
  }
  return parts;
}

}  // namespace

std::string RunWeights::describe() const {
  const std::string at = step < 0 ? "an unknown step" : fmt::format("step {}", step);
  return fmt::format("weights of {}, {} ({})", at, is_best ? "the best in validation" : "a checkpoint", file);
}

absl::StatusOr<RunWeights> find_weights(const std::string& path) {
  const Fs& fs = Fs::posix();
  RunWeights weights{.run = without_slashes(path)};
  const absl::Status opened = fs.open_directory(weights.run).status();
  if (absl::IsPermissionDenied(opened)) return reclassify(opened, ExitCode::kWeights, "ckpt.file");
  if (!fs.exists(weights.run)) {
    return run_error("none", path, "no such folder", "the folder of a run, its checkpoints/, or one step-...");
  }
  if (fs.exists(weights.run + kBestFile)) {
    weights.file = weights.run + kBestFile;
    weights.is_best = true;
    TRAINKIT_ASSIGN_OR_RETURN(weights.step, step_of_best(weights.file));
    return weights;
  }
  const auto checkpoint = resolve_checkpoint(weights.run, weights.run);
  if (!checkpoint.ok()) {
    if (!absl::IsNotFound(checkpoint.status())) return checkpoint.status();
    const bool is_run = fs.exists(weights.run + kConfigFile);
    return run_error(is_run ? "weights" : "none", path, is_run ? "a run without weights" : "not the folder of a run",
                     "best.safetensors or a checkpoint",
                     is_run ? "a run saves its first checkpoint after --save_every steps; 0 saves none" : "");
  }
  weights.run = checkpoint->run_folder();
  weights.file = checkpoint->path() + "/model.safetensors";
  weights.step = checkpoint->step;
  return weights;
}

DeviceReplicatorOptions Predictor::replicas_on(const std::vector<at::Device>& devices) {
  TORCH_CHECK_VALUE(!devices.empty(), "a Predictor needs a device");
  return replicator_options({.devices = devices});
}

absl::Status Predictor::load() {
  if (!weights_.is_best) {
    const std::string folder = split_path(weights_.file).first;  // .../checkpoints/step-...
    TRAINKIT_RETURN_IF_ERROR(verify_checkpoint({.folder = split_path(folder).first, .step = weights_.step}));
  }
  TRAINKIT_RETURN_IF_ERROR(load_weights(model(), weights_.file).status());
  devices_->synchronize();
  for (int64_t i = 0; i < devices_->replicas(); ++i) devices_->module(i)->eval();
  return absl::OkStatus();
}

at::Tensor Predictor::compute(int64_t replica, const Batch& rows, const Forward& forward) const {
  const c10::InferenceMode inference;
  const at::Device device = devices_->device(replica);
  std::optional<AutocastGuard> autocast;
  if (options_.precision != Precision::kFp32) {
    autocast.emplace(device, options_.precision == Precision::kBf16 ? at::kBFloat16 : at::kHalf);
  }
  return forward(*devices_->module(replica), device.is_cpu() ? rows : rows.to(device));
}

absl::StatusOr<std::vector<BadSample>> Predictor::run_erased(std::shared_ptr<const Dataset> dataset,
                                                             const Forward& forward, const Take& take,
                                                             const PartOfRows& part) const {
  const int64_t replicas = devices_->replicas(), total = dataset->size();
  PrefetcherOptions options = options_.loader;
  options.batch_size *= replicas;
  options.drop_last = false;
  options.device = replicas == 1 ? device() : at::Device(at::kCPU);
  if (total == 0) return std::vector<BadSample>{};
  TRAINKIT_ASSIGN_OR_RETURN(const auto loader,
                            Prefetcher::create(std::move(dataset), SequentialSampler(total), options));
  while (true) {
    TRAINKIT_ASSIGN_OR_RETURN(const std::optional<Batch> batch, loader->next());
    if (!batch) return loader->bad_samples();
    const std::vector<Batch> parts = parts_of(*batch, options_.loader.batch_size);
    std::vector<at::Tensor> outputs(parts.size());
    const auto compute_part = [&](size_t i) { outputs[i] = compute(static_cast<int64_t>(i), parts[i], forward); };
    if (replicas == 1) {
      if (!parts.empty()) compute_part(0);
    } else {
      devices_->run(
          [&](int64_t replica) {
            if (static_cast<size_t>(replica) < parts.size()) compute_part(static_cast<size_t>(replica));
            return at::Tensor();
          },
          /*reduce_gradients=*/false);
    }
    const c10::InferenceMode inference;
    for (size_t i = 0; i < parts.size(); ++i) TRAINKIT_RETURN_IF_ERROR(take(parts[i], outputs[i].cpu()));
    if (options_.on_progress) {
      const auto done = std::min(total, (batch->row_indices().back() / options.batch_size + 1) * options.batch_size);
      options_.on_progress(part.before + done, part.total > 0 ? part.total : total);
    }
  }
}

}  // namespace trainkit
