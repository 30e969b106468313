// Checks that a checkpoint holds the device's weights bit for bit, and that a resumed run is bitwise identical.
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <algorithm>
#include <map>

#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/trainer.h"
#include "trainkit/train/weights.h"
#include "trainkit/verify.h"
#include "trainkit/verify_net.h"

namespace trainkit::tool {
namespace {

constexpr int64_t kSavedRows = 192, kSavedSteps = 16;

/// Trains up to step `steps` with checkpoints, on the same rows in every call. Returns the weights on the CPU.
absl::StatusOr<NamedTensors> train_and_save(at::Device device, const std::string& folder, int64_t steps, bool resumes) {
  torch::manual_seed(51);
  const auto dataset = verify_dataset(kSavedRows);
  TRAINKIT_ASSIGN_OR_RETURN(const auto devices,
                            DeviceReplicator::create([] { return VerifyNet(0.2); }, {.device = device}));
  TRAINKIT_ASSIGN_OR_RETURN(
      const auto loader, Prefetcher::create(dataset, RandomSampler(kSavedRows, {.seed = 3}),
                                            {.batch_size = 24, .num_workers = 1, .drop_last = true, .device = device}));
  TRAINKIT_ASSIGN_OR_RETURN(auto trainer, Trainer::create(*devices, AdamW({.lr = 1e-2, .capturable = true}),
                                                          {.max_epochs = 0,
                                                           .max_steps = steps,
                                                           .grad_clip = 1,
                                                           .save_every = kSavedSteps / 2,
                                                           .output_dir = folder,
                                                           .resume = resumes ? "latest" : ""}));
  TRAINKIT_RETURN_IF_ERROR(trainer.fit(*loader, verify_loss()).status());
  NamedTensors weights;
  for (const auto& [name, tensor] : named_tensors(*devices->module())) {
    weights.emplace_back(name, tensor.detach().cpu().clone());
  }
  return weights;
}

/// Counts the tensors of `expected` that are missing in `found` or have other bits there.
int64_t differing(const NamedTensors& found, const NamedTensors& expected) {
  const std::map<std::string, at::Tensor> by_name(found.begin(), found.end());
  return std::count_if(expected.begin(), expected.end(), [&](const auto& entry) {
    const auto other = by_name.find(entry.first);
    return other == by_name.end() || !at::equal(other->second, entry.second);
  });
}

absl::StatusOr<Checked> check_bits(at::Device device) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto folder, TemporaryFolder::create());
  const std::string whole_run = folder.path() + "/whole", parts_run = folder.path() + "/parts";
  TRAINKIT_ASSIGN_OR_RETURN(const NamedTensors whole, train_and_save(device, whole_run, kSavedSteps, false));
  TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath path, resolve_checkpoint("latest", whole_run));
  TRAINKIT_ASSIGN_OR_RETURN(const CheckpointContents loaded, load_checkpoint(path));
  const int64_t wrong = differing(loaded.model, whole);
  TRAINKIT_RETURN_IF_ERROR(train_and_save(device, parts_run, kSavedSteps / 2, false).status());
  TRAINKIT_ASSIGN_OR_RETURN(const NamedTensors parts, train_and_save(device, parts_run, kSavedSteps, true));
  const int64_t wrong_resumed = differing(parts, whole);
  return passed_if(wrong == 0 && wrong_resumed == 0,
                   fmt::format("of {} tensors, {} differ in the checkpoint, {} after a resume from step {} to {}",
                               whole.size(), wrong, wrong_resumed, kSavedSteps / 2, kSavedSteps),
                   {{"tensors", whole.size()}, {"differ", wrong}, {"differ_after_resume", wrong_resumed}},
                   wrong > 0 ? "the checkpoint differs from this GPU's weights: check its memory (`nvidia-smi -q -d "
                               "ECC`), and send this report to the developers"
                             : "a resumed run differs from an uninterrupted one: send this report to the developers");
}

}  // namespace

Checked verify_checkpoint(at::Device device) { return check_bits(device).value(); }

}  // namespace trainkit::tool
