#include "train/run/run_messages.h"

#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_set>

#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/fs.h"

namespace trainkit {
namespace {

/// Describes layers with trained parameters that are in evaluation mode; empty if there are none.
std::string describe_modes(const torch::nn::Module& model) {
  std::string first;
  int64_t layers = 0, in_evaluation = 0;
  for (const auto& part : model.named_modules()) {
    const std::vector<at::Tensor> own = part.value()->parameters(/*recurse=*/false);
    if (std::none_of(own.begin(), own.end(), [](const at::Tensor& one) { return one.requires_grad(); })) continue;
    ++layers;
    if (part.value()->is_training()) continue;
    if (in_evaluation++ == 0) first = part.key();
  }
  if (!model.is_training() || (layers > 0 && in_evaluation == layers)) {
    return "warning: the model is in evaluation mode and is trained so: without dropout, and BatchNorm uses its "
           "running statistics. Call model->train() in the model factory if that is not intended";
  }
  if (in_evaluation == 0) return "";
  return fmt::format("note: {} of {} layers with trained parameters are in evaluation mode and stay so ({}{})",
                     in_evaluation, layers, first, in_evaluation > 1 ? ", ..." : "");
}

/// Warns of parameters with gradients that no optimizer has; empty if there are none.
std::string describe_others(const torch::nn::Module& model, const std::vector<RunParts::Player>& players) {
  std::unordered_set<const void*> updated;
  for (const RunParts::Player& player : players) {
    for (const ParamGroup& group : player.optimizer.param_groups()) {
      for (const NamedParameter& parameter : group.params) updated.insert(parameter.tensor.unsafeGetTensorImpl());
    }
  }
  std::vector<NamedParameter> others = trainable_parameters(model);
  std::erase_if(others, [&](const NamedParameter& parameter) {
    return updated.contains(parameter.tensor.unsafeGetTensorImpl());
  });
  if (others.empty()) return "";
  return fmt::format(
      "warning: {} parameters of the model have gradients but are not in the optimizer and stay unchanged ({}{}). "
      "Add them with add_param_group, or freeze them (requires_grad false)",
      others.size(), others.front().name, others.size() > 1 ? ", ..." : "");
}

}  // namespace

std::vector<std::string> warnings_of_model(const FitContext& run) {
  const torch::nn::Module& model = *run.devices.module();
  std::vector<std::string> lines = {describe_modes(model)};
  // With sharding the optimizer has parts of the parameters.
  if (!run.devices.shards()) lines.push_back(describe_others(model, run.players));
  std::erase(lines, "");
  return lines;
}

std::string ignored_learning_rate(double kept, double asked) {
  return fmt::format(
      "warning: resuming with the checkpoint's learning rate {:g}; {:g} is ignored. Use --init_from to start a "
      "new run from its weights",
      kept, asked);
}

std::vector<std::string> split_messages(const FitContext& run) {
  const int64_t split = run.step.split();
  const int64_t rows = std::max<int64_t>(1, run.source.batch_size() / split);
  std::vector<std::string> lines = {
      fmt::format("out of memory at step {}: each batch is now split into {} parts of about {} rows; "
                  "the rows per step are unchanged",
                  run.progress.step, split, rows)};
  const auto buffers = run.devices.module()->named_buffers();
  const bool normalises = std::any_of(buffers.begin(), buffers.end(),
                                      [](const auto& buffer) { return buffer.key().ends_with("running_mean"); });
  if (normalises) lines.emplace_back("warning: BatchNorm now normalises over the smaller parts");
  return lines;
}

std::string without_graphs(const FitContext& run) {
  const bool wants_graphs = run.options.cuda_graph != CudaGraph::kOff && run.devices.device().is_cuda();
  if (!wants_graphs || run.step.uses_graphs()) return "";
  return "steps run without a CUDA graph: " + run.step.graph_reason();
}

std::string undeleted_checkpoint(const absl::Status& status) {
  return "warning: an older checkpoint cannot be deleted and keeps its disk space: " + error_line(status);
}

std::string separate_disks(const std::string& output_dir) {
  return "note: not every rank can open " + output_dir +
         "/checkpoints of the first rank, which therefore gathers the state of all ranks and writes alone";
}

std::string size_of_files(int64_t bytes, const std::string& output_dir) {
  const auto folder = Fs::posix().open_directory(output_dir);
  const auto left = folder.ok() ? folder->free_bytes() : folder.status();
  return fmt::format("each checkpoint has {} of the source's data; {} free in {}", format_size(bytes),
                     left.ok() ? format_size(*left) : "unknown", output_dir);
}

std::string time_of_save(int64_t step, double seconds) {
  return fmt::format("the checkpoint of step {} was written in {:.1f} s, while training continued", step, seconds);
}

}  // namespace trainkit
