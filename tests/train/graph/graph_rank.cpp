// One rank with a GPU whose steps are CUDA graphs: graph_rank [sync_]SCENARIO graph|eager none|optimizer|gradients OUT.
// With sync_, the model has a norm over all ranks. Writes
// its weights to OUT/rank<r>.safetensors, also after an error, prints its results, and ends with its error's text and
// exit code.
#include <ATen/DeviceAccelerator.h>
#include <torch/torch.h>

#include <iostream>

#include "cuda_sim/cuda_sim_control.h"
#include "train/batch_norm_net.h"
#include "train/train_rank.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/optim/adam.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

constexpr int64_t kFault = 9;  // step at which the scenario happens; graphs run before it

struct Setting {
  std::string scenario;
  bool graph;
  Sharding sharding;
  bool synchronises;  // the model has a norm over all ranks
  int64_t steps() const { return scenario == "compared" || scenario == "changes" ? 1012 : 14; }
  int64_t accumulated() const { return scenario == "accumulated" ? 2 : 1; }
};

bool once(const std::string& wanted, const std::string& scenario, const ProcessGroup& group, int64_t step) {
  return scenario == wanted && group.rank() == 1 && step == kFault;
}

/// What happens before the step of a rank.
void happen(const Setting& setting, ProcessGroup& group, TrainStep& train, Optimizer& optimizer, int64_t step) {
  const std::string& scenario = setting.scenario;
  if (once("killed", scenario, group, step)) ::raise(SIGKILL);
  if (once("stopped", scenario, group, step)) ::raise(SIGSTOP);
  if (once("exits", scenario, group, step)) ::_exit(0);
  if (once("leaves", scenario, group, step)) {
    group.leave("row 17 is not a picture");
    ::_exit(3);
  }
  if (once("stop", scenario, group, step)) train.request_stop(SIGTERM);
  if (once("saves", scenario, group, step)) train.request_save();
  if (once("drops", scenario, group, step)) train.drop_graphs("the memory is needed elsewhere");
  if (scenario == "loads" && step == kFault) {
    train.confirm();
    const StateDict state = optimizer.state_dict();
    if (!optimizer.load_state_dict(state).ok()) std::abort();
  }
  if (scenario == "no_capture" && group.rank() == 1 && step == 3) set_cuda_sim("FAIL_CAPTURE", "40");
}

/// Rows of a rank in a step. Some scenarios give one rank fewer rows, so that its step has no graph.
Batch batch_of(const Setting& setting, const ProcessGroup& group, int64_t step, int64_t part) {
  const int64_t parts = group.world_size() * setting.accumulated();
  const Batch all = rank_batch(step, group.rank() * setting.accumulated() + part, parts);
  const bool is_odd = (setting.scenario.starts_with("odd") && group.rank() == 1 && step == kFault) ||
                      (setting.scenario == "few" && step % 4 == 3 && group.rank() == step % 2);
  return is_odd ? all.slice(0, 3) : all;
}

struct Loss {
  const Setting& setting;
  const ProcessGroup& group;
  int64_t& step;
  bool has_failed = false;

  LossOutput operator()(torch::nn::Module& module, const Batch& batch) {
    const bool fails = group.rank() == 1 && step == kFault;
    if (setting.scenario == "odd_throws" && fails) throw std::runtime_error("row 17 is not a picture");
    if (setting.scenario == "odd_memory" && fails && !std::exchange(has_failed, true)) {
      C10_THROW_ERROR(OutOfMemoryError, "no room for 4 GiB");
    }
    if (auto* net = module.as<BatchNormNetImpl>()) return loss_and_hits(net, batch);
    if (auto* net = module.as<SyncNormNetImpl>()) return loss_and_hits(net, batch);
    auto* net = module.as<RankNetImpl>();
    const double rate = setting.scenario == "odd_memory" ? 0 : 0.1;  // its masks depend on the split
    const at::Tensor hidden = at::dropout(torch::relu(net->hidden(batch["x"])), rate, /*train=*/true);
    const at::Tensor loss = at::cross_entropy_loss(net->out(hidden), batch["y"].clamp_min(0));  // each row counts
    return {setting.scenario == "changes" && step > 900 ? loss * 0.5 : loss};
  }
};

absl::Status save_weights(torch::nn::Module& module, const std::string& out, int64_t rank) {
  NamedTensors weights;
  for (const auto& item : module.named_parameters()) weights.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) weights.emplace_back(item.key(), item.value());
  return save_safetensors(Fs::posix(), out + "/rank" + std::to_string(rank) + ".safetensors", weights);
}

absl::Status run(const Setting& setting, DeviceReplicator& devices, ProcessGroup& group) {
  AdamW adamw({.lr = 0.01, .capturable = true});
  SGD sgd({.lr = 0.1, .capturable = true});  // does not amplify differences of rounding
  Optimizer& optimizer = setting.scenario == "odd_memory" ? static_cast<Optimizer&>(sgd) : adamw;
  TrainStep train(devices, optimizer,
                  {.grad_accum_steps = setting.accumulated(),
                   .grad_clip = 1.0,
                   .cuda_graph = setting.graph ? CudaGraph::kAuto : CudaGraph::kOff});
  int64_t step = 0;
  const LossFunction loss = Loss{setting, group, step};
  for (step = 1; step <= setting.steps(); ++step) {
    happen(setting, group, train, optimizer, step);
    for (int64_t part = 0; part < setting.accumulated(); ++part) {
      train.accumulate(batch_of(setting, group, step, part).to(devices.device()), loss);
    }
    StepMetrics metrics = train.finish();
    if (train.agreed_save()) std::cout << "saves after step " << step << std::endl;
    if (train.agreed_stop() != 0) {
      std::cout << "stopped by " << train.agreed_stop() << " after step " << step << std::endl;
      break;
    }
    if (step % (setting.steps() > 100 ? 500 : 7) > 0) continue;
    train.average_over_ranks(metrics);
    std::cout << "step " << step << " loss " << std::hexfloat << metrics.loss.item<double>() << std::endl;
  }
  train.confirm();
  std::cout << "split " << train.split() << std::endl;
  std::cerr << "graphs " << train.graph_steps() << ", captures " << train.graph_captures() << ", "
            << (train.uses_graphs() ? "active: " : "ended: ") << train.graph_reason() << std::endl;
  return absl::OkStatus();
}

absl::Status run_rank(const Setting& setting, const std::string& out) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto launch, read_launch_environment());
  const at::Device device(at::kCUDA, static_cast<int8_t>(launch->local_rank));
  at::accelerator::setDeviceIndex(device.index());
  const auto timeout = std::chrono::milliseconds(setting.scenario == "stopped" ? 2000 : 30000);
  TRAINKIT_ASSIGN_OR_RETURN(const auto group,
                            ProcessGroup::create(launch.value(), {.timeout = timeout, .device = device}));
  const auto make = [&]() -> std::shared_ptr<torch::nn::Module> {
    torch::manual_seed(1);
    if (setting.synchronises) return SyncNormNet(8).ptr();
    if (setting.scenario == "batch_norm") return BatchNormNet(8).ptr();
    return RankNet().ptr();
  };
  TRAINKIT_ASSIGN_OR_RETURN(const auto devices, DeviceReplicator::create(make, {.device = device,
                                                                                .sync_batch_norm = setting.synchronises,
                                                                                .process_group = group,
                                                                                .sharding = setting.sharding}));
  absl::Status status;
  try {
    status = run(setting, *devices, *group);
  } catch (...) {
    status = status_from_current_exception();
  }
  // After the loss of a rank the device may wait for it without end.
  if (group->usable()) status.Update(save_weights(*devices->module(), out, group->rank()));
  return status;
}

}  // namespace

int main(int, char** values) {
  std::string scenario = values[1];
  const std::string sharding = values[3];
  const bool synchronises = scenario.starts_with("sync_");
  if (synchronises) scenario = scenario.substr(5);
  const Setting setting{scenario, std::string(values[2]) == "graph",
                        sharding == "none"        ? Sharding::kNone
                        : sharding == "optimizer" ? Sharding::kOptimizer
                                                  : Sharding::kGradients,
                        synchronises};
  absl::Status status;
  try {
    at::set_num_threads(1);
    status = run_rank(setting, values[4]);
  } catch (...) {
    status = status_from_current_exception();
  }
  if (status.ok()) return 0;
  std::cerr << error_text(status);
  return static_cast<int>(exit_code(status));
}
