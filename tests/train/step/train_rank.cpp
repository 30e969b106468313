// One rank that trains a small model with TrainStep: train_rank SCENARIO OUT. Writes its weights to
// OUT/rank<r>.safetensors, prints its results, and ends with its error's text and exit code.

#include "train/train_rank.h"

#include <ATen/DeviceAccelerator.h>
#include <torch/torch.h>

#include <chrono>
#include <iostream>
#include <thread>

#include "cuda_sim/cuda_sim_control.h"
#include "train/budget_allocator.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/io/safetensors.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// Runs the rank's scenario at step `step`, in the forward of its loss.
void misbehave(const std::string& scenario, int64_t rank, int64_t step) {
  if (scenario == "throws_alone" && rank == 0 && step == 3) ::raise(SIGKILL);
  if (rank != 1 || step != 3) return;
  if (scenario == "killed") ::raise(SIGKILL);
  if (scenario == "stopped") ::raise(SIGSTOP);
  if (scenario == "exits") ::_exit(0);
  if (scenario == "throws" || scenario == "throws_alone") throw std::runtime_error("row 17 is not a picture");
  static bool once = false;
  if (scenario == "out_of_memory" && !std::exchange(once, true)) C10_THROW_ERROR(OutOfMemoryError, "no room for 4 GiB");
}

/// The device of rank 1 fails at step 3, long before the rank notices: NCCL's watchdog, which looks at the exchanges
/// every 100 ms, is the first.
void fail_device(ProcessGroup& group, at::Device device, int64_t step) {
  if (step != 3) return;
  const at::Tensor ones = at::ones({1}, device);
  group.all_reduce(ones).IgnoreError();
  if (group.rank() != 1) return;
  set_cuda_sim("FAIL_LAUNCH", "1");
  ones.zero_();
  std::this_thread::sleep_for(std::chrono::seconds(1));
}

/// rank_loss with a backward that throws when the gradient of `where` is ready: the hidden layer's output, or the
/// input, which follows all parameters.
LossOutput failing_loss(torch::nn::Module& module, const Batch& batch, const std::string& where) {
  auto* net = module.as<RankNetImpl>();
  const auto fail = [](const at::Tensor&) -> void { throw std::runtime_error("row 17 is not a picture"); };
  const at::Tensor x = batch["x"].detach().requires_grad_();
  const at::Tensor hidden = net->hidden(x);
  (where == "x" ? x : hidden).register_hook(fail);
  return {at::cross_entropy_loss(net->out(torch::relu(hidden)), batch["y"]), batch["y"].ge(0).sum().item<double>()};
}

/// A loss that does not use the output layer.
LossOutput hidden_loss(torch::nn::Module& module, const Batch& batch) {
  return module.as<RankNetImpl>()->hidden(batch["x"]).square().mean();
}

/// Failing allocations, of the host or of the simulated device.
class Faults {
 public:
  explicit Faults(at::Device device) : on_device_(device.is_cuda()) {
    if (!on_device_) BudgetAllocator::instance();
  }
  /// Lets `allocations` succeed and the next one fail.
  void fail_after(int64_t allocations) {
    if (!on_device_) return BudgetAllocator::instance().fail_after(allocations);
    wanted_ = this->allocations() + static_cast<uint64_t>(allocations) + 1;
    set_cuda_sim("FAIL_MALLOC", std::to_string(wanted_));
  }
  /// Returns whether an allocation has failed.
  bool disarm() {
    if (!on_device_) return BudgetAllocator::instance().disarm();
    if (wanted_ > 0) set_cuda_sim("FAIL_MALLOC", "0");
    const uint64_t wanted = std::exchange(wanted_, 0);
    return wanted > 0 && allocations() >= wanted;
  }
  int64_t live() const {
    if (!on_device_) return BudgetAllocator::instance().live();
    const auto [free, total] = at::accelerator::getMemoryInfo(at::accelerator::getDeviceIndex());
    return static_cast<int64_t>(total - free);
  }

 private:
  static uint64_t allocations() { return cuda_sim_counts()["mallocs"].get<uint64_t>(); }

  bool on_device_;
  uint64_t wanted_ = 0;
};

/// Runs steps that fail at each of their allocations in turn (on rank 1, or on all), then each step again from the same
/// state, in the number of parts that the failure led to.
absl::Status fail_everywhere(const std::string& scenario, const std::shared_ptr<ProcessGroup>& group,
                             at::Device device) {
  const int64_t kFaults = device.is_cuda() ? 120 : 150;
  const int64_t rank = group->rank(), accumulated = scenario == "oom_accumulated" ? 2 : 1;
  const bool fails_here = scenario == "oom_on_both" || rank == 1;
  Faults memory(device);
  bool failed = false;
  const auto make = [&] {
    torch::manual_seed(1);
    return RankNet();
  };
  TRAINKIT_ASSIGN_OR_RETURN(const auto devices,
                            DeviceReplicator::create(make, {.device = device, .process_group = group}));
  TRAINKIT_ASSIGN_OR_RETURN(const auto expected,
                            DeviceReplicator::create(make, {.device = device, .process_group = group}));
  SGD optimizer({.lr = 0.1}), expected_optimizer({.lr = 0.1});
  TrainStep train(*devices, optimizer, {.grad_accum_steps = accumulated, .grad_clip = 1.0});
  TrainStep again(*expected, expected_optimizer, {.grad_accum_steps = accumulated, .grad_clip = 1.0});
  const auto take = [&](TrainStep& step, int64_t number, int64_t fault = -1) {
    std::vector<Batch> batches;
    for (int64_t part = 0; part < accumulated; ++part) {
      batches.push_back(rank_batch(number, rank * accumulated + part, group->world_size() * accumulated).to(device));
    }
    if (fault >= 0) memory.fail_after(fault);
    for (const Batch& batch : batches) step.accumulate(batch, rank_loss);
    const StepMetrics metrics = step.finish();
    failed = memory.disarm();
    return metrics.loss.item<double>();
  };
  for (int64_t step = 1; step <= 3; ++step) take(train, step), take(again, step);
  bool met = false;
  // NCCL's watchdog releases the memory of an exchange a little later.
  const int64_t spare = device.is_cuda() ? 32768 : 4096;
  int64_t live = 0, splits = 0;
  for (int64_t fault = 0; fault < kFaults; ++fault) {
    const int64_t number = fault % 5;
    train.set_split(1);
    const double loss = take(train, number, fails_here ? fault : -1);
    met = failed;
    splits += train.split() > 1 ? 1 : 0;
    again.set_split(train.split());
    if (loss != take(again, number)) std::cout << "loss differs at fault " << fault << std::endl;
    const auto here = devices->module()->parameters(), there = expected->module()->parameters();
    for (size_t i = 0; i < here.size(); ++i) {
      if (!here[i].equal(there[i])) std::cout << "weights differ at fault " << fault << std::endl;
    }
    // After a failed step the Reducer rearranges its buckets on all ranks together; this must not happen during a
    // measurement.
    train.set_split(1);
    again.set_split(1);
    take(train, number + 1);
    take(again, number + 1);
    if (fault == 0) live = memory.live();
    if (memory.live() > live + spare)
      std::cout << memory.live() - live << " bytes leak at fault " << fault << std::endl;
  }
  std::cout << (splits > (device.is_cuda() ? 15 : 20) && !met ? "every fault met, " : "not every fault met, ") << splits
            << " splits" << std::endl;
  return absl::OkStatus();
}

absl::Status run_rank(std::string scenario, const std::string& out) {
  const bool on_cuda = scenario.starts_with("cuda_");
  if (on_cuda) scenario = scenario.substr(5);
  TRAINKIT_ASSIGN_OR_RETURN(const auto launch, read_launch_environment());
  const at::Device device = on_cuda ? at::Device(at::kCUDA, static_cast<int8_t>(launch->local_rank)) : at::kCPU;
  const auto timeout = std::chrono::milliseconds(scenario == "stopped" ? 2000 : 30000);
  TRAINKIT_ASSIGN_OR_RETURN(const auto group,
                            ProcessGroup::create(launch.value(), {.timeout = timeout, .device = device}));
  const int64_t rank = group->rank();
  if (device.is_cuda()) at::accelerator::setDeviceIndex(device.index());
  if (scenario == "digest") {
    TRAINKIT_RETURN_IF_ERROR(group->compare_digest(
        {{"library", "1"}, {"batch_size", rank == 1 ? "16" : "32"}, {"rows", std::to_string(rank)}}));
  }
  if (scenario.starts_with("oom_")) return fail_everywhere(scenario, group, device);
  const int64_t width = scenario == "other_model" && rank == 1 ? 9 : 16;
  TRAINKIT_ASSIGN_OR_RETURN(const auto devices, DeviceReplicator::create(
                                                    [&] {
                                                      torch::manual_seed(1);
                                                      return RankNet(width);
                                                    },
                                                    {.device = device, .process_group = group}));
  SGD optimizer({.lr = 0.1});
  const bool accumulating = scenario.starts_with("accumulate");
  TrainStep train(*devices, optimizer, {.grad_accum_steps = accumulating ? 2 : 1, .grad_clip = 1.0});
  for (int64_t step = 1; step <= kRankSteps; ++step) {
    const int64_t micro_batches = scenario == "accumulate_short" && step == kRankSteps ? 1 : accumulating ? 2 : 1;
    try {
      if (scenario == "stop" && rank == 1 && step == 3) train.request_stop(SIGTERM);
      for (int64_t part = 0; part < micro_batches; ++part) {
        const bool unreadable = scenario == "unreadable" && rank == 1 && step <= 2;
        const Batch batch =
            unreadable ? Batch() : rank_batch(step, rank * micro_batches + part, group->world_size() * micro_batches);
        train.accumulate(batch.to(device), [&](torch::nn::Module& module, const Batch& batch) {
          misbehave(scenario, rank, step);
          if (scenario == "device_fails") fail_device(*group, device, step);
          const bool fails = rank == 1 && step == 3;
          if (fails && scenario == "throws_in_backward") return failing_loss(module, batch, "hidden");
          if (fails && scenario == "throws_at_the_end") return failing_loss(module, batch, "x");
          if (scenario == "unreached") return hidden_loss(module, batch);
          LossOutput output = rank_loss(module, batch);
          if (scenario == "unreadable") output.metrics = {{"twice", output.loss.detach() * 2}};
          if (scenario == "own_metrics" && (rank == 0 || step >= 3)) {
            const at::Tensor value = at::scalar_tensor(static_cast<double>(rank + 1));
            output.metrics = {{"of_rank_" + std::to_string(rank), value}, {"common", value}};
          }
          return output;
        });
      }
      if (scenario == "stop_late" && rank == 1 && step == 3) train.request_stop(SIGTERM);
      StepMetrics metrics = train.finish();
      train.average_over_ranks(metrics);
      std::cout << "step " << step << " loss " << metrics.loss.item<double>();
      for (const auto& [name, value] : metrics.metrics) std::cout << " " << name << " " << value.item<double>();
      std::cout << std::endl;
    } catch (const absl::BadStatusOrAccess& error) {
      return error.status();
    }
    if (train.split() > 1) std::cout << "in " << train.split() << " parts" << std::endl;
    if (train.agreed_stop() != 0) {
      std::cout << "stopped by " << train.agreed_stop() << " after step " << step << std::endl;
      break;
    }
  }
  NamedTensors weights;
  for (const auto& item : devices->module()->named_parameters()) weights.emplace_back(item.key(), item.value());
  return save_safetensors(Fs::posix(), out + "/rank" + std::to_string(rank) + ".safetensors", weights);
}

}  // namespace

int main(int, char** values) {
  absl::Status status;
  try {
    at::set_num_threads(1);
    status = run_rank(values[1], values[2]);
  } catch (...) {
    status = status_from_current_exception();
  }
  if (status.ok()) return 0;
  std::cerr << error_text(status);
  return static_cast<int>(exit_code(status));
}
