#include "app/run/describe_run.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include "tasks/format_scores.h"
#include "train/run/run_state.h"
#include "trainkit/core/format.h"
#include "trainkit/core/processors.h"
#include "trainkit/train/weights.h"

namespace trainkit::detail {
namespace {

/// Describes the devices: "ddp over 2 ranks, each on cpu", "dp on cuda:0 (79.1 GiB), cuda:1 (79.1 GiB)", "single on
/// cpu".
std::string describe_devices(const Placement& placement) {
  const std::vector<at::Device>& devices = placement.devices;
  std::string text = name_of(placement.strategy);
  text += placement.group ? fmt::format(" over {} ranks, each on ", placement.batch.replicas) : " on ";
  if (devices.size() > 1 && placement.device().is_cpu()) {
    return text + fmt::format("cpu, {} logical replicas", devices.size());
  }
  if (placement.ranks() > 1 && !placement.device().is_cpu()) {
    return text + fmt::format("a GPU of {}", format_size(total_memory_bytes(placement.device())));
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    text += (i ? ", " : "") + devices[i].str();
    if (!devices[i].is_cpu()) text += fmt::format(" ({})", format_size(total_memory_bytes(devices[i])));
  }
  return text;
}

/// Describes what the ranks divide among them (--shard); empty if nothing.
std::string describe_sharding(Sharding sharding) {
  if (sharding == Sharding::kNone) return "";
  return sharding == Sharding::kOptimizer ? "; they divide the optimizer state"
                                          : "; they divide optimizer state and gradients";
}

/// Describes the parameters, and the memory that weights, gradients, averages and the optimizer's state take on a
/// device.
std::string describe_model(const DeviceReplicator& devices, const Optimizer& optimizer, bool averages) {
  const torch::nn::Module& model = *devices.module();
  int64_t parameters = 0, weight_bytes = 0, trained_bytes = 0, state_bytes = 0;
  for (const auto& [name, tensor] : named_tensors(model)) {
    parameters += tensor.numel();
    weight_bytes += static_cast<int64_t>(tensor.nbytes());
  }
  for (const at::Tensor& parameter : model.parameters()) {
    if (parameter.requires_grad()) trained_bytes += static_cast<int64_t>(parameter.nbytes());
  }
  const int64_t ranks = devices.sharding() == Sharding::kNone ? 1 : devices.world_replicas();
  const int64_t gradient_bytes = devices.sharding() == Sharding::kGradients ? trained_bytes / ranks : trained_bytes;
  const StateDict state = optimizer.state_dict();
  for (const auto& [name, value] : state) {
    const auto* tensor = std::get_if<at::Tensor>(&value);
    if (tensor && !name.ends_with(".step")) state_bytes += static_cast<int64_t>(tensor->nbytes());
  }
  return fmt::format("{} parameters; weights {}, gradients {}, {} state {}{}",
                     format_count(static_cast<double>(parameters)), format_size(weight_bytes),
                     format_size(gradient_bytes), std::get<std::string>(state.at("type")), format_size(state_bytes),
                     averages ? ", averages " + format_size(trained_bytes / ranks) : "");
}

}  // namespace

std::string describe_time(const TrainerResult& result) {
  return fmt::format("{} steps in {}, data wait {:.1f}%", result.steps_run, format_duration(result.wall_seconds),
                     100 * result.data_wait_fraction);
}

std::string describe_next(const TrainerResult& result, const RunOptions& run, const std::string& program) {
  std::string text;
  if (run.use_tensorboard) {
    const std::string own = run.output_dir + "/tensorboard";
    text += "\ntensorboard --logdir " + (run.tensorboard_dir.empty() ? own : run.tensorboard_dir) +
            "  (loss, scores and throughput together: http://localhost:6006/#custom_scalars)";
  }
  if (result.signal != 0) {
    text += fmt::format("\nstopped by signal {}; resume with: {} --output_dir {} --resume latest", result.signal,
                        program, run.output_dir);
  }
  return text;
}

RunFacts describe_run(const RunOptions& run, Trainer& trainer, const Placement& placement, const Prefetcher& loader) {
  const DeviceReplicator& devices = trainer.devices();
  const Precision precision = trainer.options().precision;
  RunFacts facts;
  const auto add = [&](const char* name, std::string text) { facts.emplace_back(name, std::move(text)); };
  const BatchPlan& batch = placement.batch;
  add("strategy", describe_devices(placement) + describe_sharding(devices.sharding()));
  add("batch",
      fmt::format("{} per device x {} device{} x {} accumulated = {} per step", batch.batch_size, batch.replicas,
                  batch.replicas == 1 ? "" : "s", batch.grad_accum_steps, batch.global_batch_size()));
  if (batch.batch_size != run.batch_size.value) {
    add("", fmt::format("(instead of {} per device, to keep the global batch)", *run.batch_size.value));
  }
  add("precision", name_of(precision));
  add("model", describe_model(devices, trainer.optimizer(), run.ema > 0));
  add("data", fmt::format("{} rows, {} batches per epoch, {} workers, {} LibTorch threads on {} processors",
                          loader.dataset().size(), loader.batches_per_epoch(), loader.options().num_workers,
                          at::get_num_threads(), available_cpus()));
  for (const FieldSpec& field : loader.dataset().fields()) {
    add("", fmt::format("{} ({}{}{}) {}", field.name, batch.batch_size, field.shape.empty() ? "" : ", ",
                        fmt::join(field.shape, ", "), c10::toString(field.dtype)));
  }
  if (devices.device().is_cuda() && precision == Precision::kFp32) {
    add("warning:", "training on a GPU without mixed precision; --mixed_precision is faster and uses less memory");
  }
  if (devices.device().is_cpu() && at::hasCUDA()) {
    add("warning:", "a GPU is available but not used; use --device cuda");
  }
  const int64_t steps = planned_steps(loader.batches_per_epoch(), trainer.options());
  if (run.ema > 0 && steps > 0 && static_cast<double>(steps) * (1 - run.ema) < 3) {
    add("warning:",
        fmt::format("--ema {:g} averages about {:.0f} steps, but the run has {}: the average stays close to "
                    "the initial weights",
                    run.ema, 1 / (1 - run.ema), steps));
  }
  for (const std::string& warning : placement.warnings) add("warning:", warning);
  add("output", run.output_dir);
  return facts;
}

std::string describe_evaluation(const TrainerResult& result) {
  if (result.evaluation.empty()) return "";
  std::string text = "validation";
  for (const auto& [name, value] : result.evaluation) text += fmt::format(" {} {:.4f}", name, value);
  return text + "\n";
}

std::string describe_task_scores(const ModelTest& test, const TrainerResult& result, const Metrics& scores,
                                 int64_t tested_step, const std::string& output_dir) {
  std::string text;
  const std::vector<ScoreName> names = test.score_names();
  if (!result.evaluation.empty()) {
    const std::string monitor = test.monitor();
    ScoreName best{monitor, monitor, ScoreName::Kind::kNumber};
    for (const ScoreName& name : names) {
      if (name.key == monitor) best = name;
    }
    text += fmt::format("validation loss {:.4f}", result.evaluation.at("loss"));
    if (const std::string more = format_scores(names, result.evaluation); !more.empty()) text += "  " + more;
    if (result.best_evaluation.contains(best.key)) {
      text += fmt::format("  (best {} {} at step {})", best.title, format_score(best, result.best_evaluation),
                          result.best_step);
    }
    text += "\n";
  }
  if (scores.empty()) return text;
  text += "test       " + format_scores(names, scores) + "\n           ";
  text += tested_step >= 0 ? fmt::format("with the weights of step {}, the best in validation\n", tested_step)
                           : std::string("with the last weights\n");
  return text + fmt::format("results    {}/results\n", output_dir);
}

}  // namespace trainkit::detail
