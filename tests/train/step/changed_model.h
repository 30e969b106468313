#pragma once
/// A model that changes between steps, trained on one device, on replicas and on ranks.

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "distributed/rank_threads.h"
#include "test_util.h"
#include "train/batch_norm_net.h"
#include "train/trainer_run.h"
#include "trainkit/core/status.h"
#include "trainkit/optim/sgd.h"

namespace trainkit::test {

constexpr int64_t kNetRows = 12;

/// Places of a model: one device, replicas that share weights or not, ranks.
enum class Place { kOne, kShared, kOwn, kRanks };

inline SyncNormNetImpl& net_of(DeviceReplicator& devices, int64_t replica = 0) {
  return *devices.module(replica)->as<SyncNormNetImpl>();
}

/// A model with a BatchNorm that does not synchronise.
inline std::shared_ptr<torch::nn::Module> make_net(bool trains_norm) {
  torch::manual_seed(1);
  auto net = std::make_shared<SyncNormNetImpl>();
  net->norm->options.synchronize = false;
  net->norm->running_mean.fill_(0.1);
  net->norm->train(trains_norm);
  return net;
}

/// A loss function may keep state, so each rank of a test, which is a thread, has its own.
inline const LossFunction& loss_of_net() {
  thread_local const LossFunction loss = make_loss_function([](SyncNormNet& net, const Batch& batch) {
    return at::cross_entropy_loss(net->forward(batch["x"]), batch["y"]);
  });
  return loss;
}

/// Trains with `work` on `place` and returns the weights of all copies.
using NetWork = std::function<void(DeviceReplicator& devices, const std::function<void(TrainStep&, uint64_t)>& take)>;
inline std::vector<std::vector<at::Tensor>> train_on(Place place, bool trains_norm, const NetWork& work) {
  std::mutex mutex;
  std::vector<std::vector<at::Tensor>> copies;
  const auto run = [&](const DeviceReplicatorOptions& options, int64_t rank, int64_t ranks) {
    static std::mutex making;  // of models: they draw from one generator
    std::unique_ptr<DeviceReplicator> devices;
    {
      const auto make = [&] {
        const std::lock_guard lock(making);
        return make_net(trains_norm);
      };
      devices = DeviceReplicator::create(make, options).value();
    }
    work(*devices, [&](TrainStep& step, uint64_t seed) {
      step(random_batch(kNetRows, seed).slice(kNetRows * rank / ranks, kNetRows * (rank + 1) / ranks), loss_of_net());
    });
    const std::lock_guard lock(mutex);
    for (int64_t replica = 0; replica < devices->replicas(); ++replica) {
      copies.push_back(devices->module(replica)->parameters());
    }
  };
  if (place == Place::kRanks) {
    const auto texts = on_ranks(2, [&](ProcessGroup& group) -> absl::Status {
      try {
        run({.device = at::kCPU, .process_group = {&group, [](ProcessGroup*) {}}}, group.rank(), 2);
        return absl::OkStatus();
      } catch (...) {
        return status_from_current_exception();
      }
    });
    for (const std::string& text : texts) REQUIRE(text == "ok");
  } else {
    run({.device = at::kCPU, .cpu_replicas = place == Place::kOne ? 1 : 2, .share_weights = place == Place::kShared}, 0,
        1);
  }
  return copies;
}

/// Expects the weights of one device on every copy, and equal bits on all copies.
inline void check_all_places(bool trains_norm, const NetWork& work) {
  const auto one = train_on(Place::kOne, trains_norm, work)[0];
  for (const Place place : {Place::kShared, Place::kOwn, Place::kRanks}) {
    const auto copies = train_on(place, trains_norm, work);
    REQUIRE(copies.size() == 2);
    for (size_t i = 0; i < one.size(); ++i) {
      INFO("place " << static_cast<int>(place) << ", parameter " << i);
      CHECK(at::allclose(copies[0][i], one[i], 1e-4, 1e-6));
      CHECK(copies[0][i].equal(copies[1][i]));
    }
  }
}

inline void set_trained(torch::nn::Module& module, bool trained) {
  for (const at::Tensor& parameter : module.parameters()) parameter.set_requires_grad(trained);
}

inline std::unique_ptr<Prefetcher> net_rows(int64_t count, int64_t batch_size) {
  return Prefetcher::create(tiny_dataset(count), SequentialSampler(count), {.batch_size = batch_size}).value();
}

inline int64_t count_lines(const RecordingLogger& logger, const std::string& text) {
  return std::count_if(logger.lines.begin(), logger.lines.end(),
                       [&](const std::string& line) { return line.find(text) != std::string::npos; });
}

}  // namespace trainkit::test
