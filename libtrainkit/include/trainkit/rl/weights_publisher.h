#pragma once
/// Weights of a model in training for other threads: actors, evaluations, viewers.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trainkit {

/// Parameters and buffers of a model after a step, complete, in memory of their own. Do not change the tensors.
struct WeightsVersion {
  int64_t step = 0;
  /// Parameters, then buffers, each once, in the module's order; with the dtype and strides of the model's.
  std::vector<at::Tensor> tensors;
};

/// Copies the weights of a model when the training thread says so, and gives the newest copy to any thread.
///
///   WeightsPublisher weights(*devices->module());
///   std::thread actor([&] {
///     ActorModel<Policy> policy([] { return Policy(); }, weights);
///     while (plays) act(policy.refresh()->forward(observation));
///   });
///   while (session.step().value()) weights.publish(session.progress().step);
///
/// A reader always has one complete version: memory is written again only when no version, model or tensor refers to
/// it. Without readers that hold older versions there are two copies of the weights per device, with them one more
/// each.
///
/// Devices. On the model's device publish() makes a copy, on the CPU before it returns, with all of LibTorch's threads,
/// on a GPU in the order of the current stream. From there another device gets it on a stream of its own; a version
/// that comes while this copies replaces the one that waits. Nothing synchronises a device.
///
/// Threads: publish() belongs to the thread that changes the weights, latest() to any. The publisher must outlive its
/// readers' calls.
class WeightsPublisher {
 public:
  /// Publishes the weights of now as those of step 0, and waits for the copies. `devices` are those of the readers.
  /// The model must not replace its parameters or buffers. Throws c10::ValueError for an empty list.
  explicit WeightsPublisher(const torch::nn::Module& model, std::vector<at::Device> devices = {at::kCPU});
  ~WeightsPublisher();
  WeightsPublisher(const WeightsPublisher&) = delete;
  WeightsPublisher& operator=(const WeightsPublisher&) = delete;

  /// Copies the weights of now as those of `step`. The next update may begin when it returns.
  void publish(int64_t step);
  /// Returns the newest version that is complete on `device`, never null; does not wait for a copy. On a GPU the memory
  /// also stays until work that is queued on the calling thread's current stream, when the version is given up, has
  /// ended. Throws c10::ValueError if the device is none of those of the constructor.
  std::shared_ptr<const WeightsVersion> latest(at::Device device = at::kCPU) const;
  /// Names of the tensors of a version.
  const std::vector<std::string>& names() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct ActorOptions {
  at::Device device = at::kCPU;
  /// Copy a version into the model's own memory instead of using the version's. CUDA graphs of the model need it: they
  /// keep addresses.
  bool copies = false;
};

namespace detail {
/// A module that takes versions of a publisher.
class ActorWeights {
 public:
  ActorWeights(std::shared_ptr<torch::nn::Module> model, const WeightsPublisher& weights, const ActorOptions& options);
  void refresh();
  int64_t version() const { return version_->step; }

 private:
  const std::shared_ptr<torch::nn::Module> model_;
  const WeightsPublisher& weights_;
  const ActorOptions options_;
  std::vector<at::Tensor> tensors_;  // of the model, in the order of a version
  std::shared_ptr<const WeightsVersion> version_;
};
}  // namespace detail

/// A model of a reading thread, M a module holder (TORCH_MODULE): in evaluation mode, without gradients. One thread
/// uses it. Wrap calls in at::NoGradGuard.
template <class M>
class ActorModel {
 public:
  /// Makes a model with `factory`, moves it to the device and takes the newest version. Throws c10::ValueError if it
  /// has other parameters or buffers than the publisher's model.
  ActorModel(const std::function<M()>& factory, const WeightsPublisher& weights, const ActorOptions& options = {})
      : model_(factory()), weights_(model_.ptr(), weights, options) {}

  /// Takes the newest version if it has changed, and returns the model. Call it between batches: within one the weights
  /// stay. Neither waits for a copy nor, unless ActorOptions::copies, makes one.
  M& refresh() {
    weights_.refresh();
    return model_;
  }
  M& model() { return model_; }
  /// Step of the weights in use.
  int64_t version() const { return weights_.version(); }

 private:
  M model_;
  detail::ActorWeights weights_;
};

}  // namespace trainkit
