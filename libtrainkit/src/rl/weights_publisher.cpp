#include "trainkit/rl/weights_publisher.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

#include "core/device/streaming_copy.h"
#include "rl/weight_channel.h"
#include "rl/weight_copies.h"

namespace trainkit {
namespace {

/// A device with its index.
at::Device indexed(at::Device device) {
  if (device.is_cpu()) return at::Device(at::kCPU);
  return device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

/// Copies tensors on the CPU to the places of a version.
void copy_on_host(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  std::vector<detail::ByteCopy> copies;
  for (size_t i = 0; i < to.size(); ++i) {
    if (from[i].is_non_overlapping_and_dense()) {
      copies.push_back({to[i].mutable_data_ptr(), from[i].const_data_ptr(), from[i].nbytes()});
    } else {
      to[i].copy_(from[i]);
    }
  }
  detail::copy_in_parallel(copies);
}

}  // namespace

class WeightsPublisher::Impl {
 public:
  Impl(const torch::nn::Module& model, const std::vector<at::Device>& devices)
      : weights_(model),
        layout_(std::make_shared<const detail::WeightLayout>(weights_.tensors)),
        device_(weights_.tensors.empty() ? at::Device(at::kCPU) : indexed(weights_.tensors.front().device())) {
    TORCH_CHECK_VALUE(!devices.empty(), "WeightsPublisher: no devices");
    for (const at::Tensor& tensor : weights_.tensors) {
      TORCH_CHECK_VALUE(indexed(tensor.device()) == device_, "WeightsPublisher: the model is on several devices");
    }
    const bool leaves_host =
        device_.is_cpu() && std::any_of(devices.begin(), devices.end(), [](at::Device d) { return !d.is_cpu(); });
    host_ = std::make_shared<detail::HostVersions>(layout_, /*page_locked=*/leaves_host);
    for (const at::Device device : devices) {
      channels_.push_back(std::make_unique<detail::WeightChannel>(indexed(device), device_, layout_));
    }
    publish(0);
    for (const auto& channel : channels_) channel->wait();
  }

  void publish(int64_t step) {
    const detail::Snapshot snapshot = take(step);
    for (const auto& channel : channels_) channel->offer(snapshot);
  }

  std::shared_ptr<const WeightsVersion> latest(at::Device device) const {
    const at::Device wanted = indexed(device);
    for (const auto& channel : channels_) {
      if (channel->device() != wanted) continue;
      std::shared_ptr<const detail::WeightBlocks> version = channel->latest();
      if (!wanted.is_cpu()) {
        const c10::Stream current = c10::impl::VirtualGuardImpl(wanted.type()).getStream(wanted);
        for (const at::Tensor& block : version->blocks) block.record_stream(current);
      }
      return version;
    }
    TORCH_CHECK_VALUE(false, "WeightsPublisher: weights are not published for ", wanted);
  }

  const std::vector<std::string>& names() const { return weights_.names; }

 private:
  /// Copies the weights on their device.
  detail::Snapshot take(int64_t step) const {
    const at::NoGradGuard no_grad;
    if (device_.is_cpu()) {
      const std::shared_ptr<detail::WeightBlocks> version = host_->take();
      version->step = step;
      copy_on_host(version->tensors, weights_.tensors);
      return {version, nullptr};
    }
    const c10::Stream current = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
    std::shared_ptr<detail::WeightBlocks> version = layout_->make(device_, /*page_locked=*/false);
    version->step = step;
    at::_foreach_copy_(version->tensors, weights_.tensors);
    auto done = std::make_shared<c10::Event>(device_.type());
    done->record(current);
    return {std::move(version), std::move(done)};
  }

  const detail::NamedWeights weights_;
  const std::shared_ptr<const detail::WeightLayout> layout_;
  const at::Device device_;
  std::shared_ptr<detail::HostVersions> host_;
  std::vector<std::unique_ptr<detail::WeightChannel>> channels_;
};

WeightsPublisher::WeightsPublisher(const torch::nn::Module& model, std::vector<at::Device> devices)
    : impl_(std::make_unique<Impl>(model, devices)) {}
WeightsPublisher::~WeightsPublisher() = default;
void WeightsPublisher::publish(int64_t step) { impl_->publish(step); }
std::shared_ptr<const WeightsVersion> WeightsPublisher::latest(at::Device device) const {
  return impl_->latest(device);
}
const std::vector<std::string>& WeightsPublisher::names() const { return impl_->names(); }

namespace detail {

ActorWeights::ActorWeights(std::shared_ptr<torch::nn::Module> model, const WeightsPublisher& weights,
                           const ActorOptions& options)
    : model_(std::move(model)), weights_(weights), options_(options) {
  model_->to(options.device);
  model_->eval();
  NamedWeights own(*model_);
  version_ = weights_.latest(options_.device);
  TORCH_CHECK_VALUE(own.names == weights_.names(),
                    "ActorModel: the model has other parameters or buffers than the "
                    "published one");
  for (size_t i = 0; i < own.tensors.size(); ++i) {
    const at::Tensor& tensor = own.tensors[i];
    TORCH_CHECK_VALUE(tensor.sizes() == version_->tensors[i].sizes() && tensor.dtype() == version_->tensors[i].dtype(),
                      "ActorModel: '", own.names[i], "' has another shape or type than the published one");
    tensor.requires_grad_(false);
  }
  tensors_ = std::move(own.tensors);
  version_ = nullptr;
  refresh();
}

void ActorWeights::refresh() {
  std::shared_ptr<const WeightsVersion> newest = weights_.latest(options_.device);
  if (newest == version_) return;
  const at::NoGradGuard no_grad;
  if (options_.copies) {
    at::_foreach_copy_(tensors_, newest->tensors);
  } else {
    for (size_t i = 0; i < tensors_.size(); ++i) tensors_[i].set_data(newest->tensors[i]);
  }
  version_ = std::move(newest);
}

}  // namespace detail
}  // namespace trainkit
