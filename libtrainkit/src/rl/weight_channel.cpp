#include "rl/weight_channel.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace trainkit::detail {

WeightChannel::WeightChannel(at::Device device, at::Device model_device, std::shared_ptr<const WeightLayout> layout)
    : device_(device), is_on_model_device_(device == model_device), layout_(std::move(layout)) {
  if (is_on_model_device_) return;
  const at::Device gpu = device.is_cpu() ? model_device : device;
  stream_ = c10::impl::VirtualGuardImpl(gpu.type()).getStreamFromGlobalPool(gpu, /*isHighPriority=*/false);
  if (device.is_cpu()) host_ = std::make_shared<HostVersions>(layout_, /*page_locked=*/true);
}

void WeightChannel::offer(const Snapshot& snapshot) {
  const std::lock_guard lock(mutex_);
  if (!is_on_model_device_) {
    waiting_ = snapshot;
  } else if (snapshot.done) {
    copies_.push_back({{}, snapshot.version, snapshot.done});
  } else {
    latest_ = snapshot.version;
  }
  look();
}

std::shared_ptr<const WeightBlocks> WeightChannel::latest() {
  const std::lock_guard lock(mutex_);
  look();
  return latest_;
}

void WeightChannel::wait() {
  const std::lock_guard lock(mutex_);
  while (!copies_.empty()) {
    copies_.front().done->synchronize();
    look();
  }
}

void WeightChannel::look() {
  while (!copies_.empty() && copies_.front().done->query()) {
    latest_ = std::move(copies_.front().version);
    copies_.pop_front();
  }
  if (copies_.empty() && waiting_) start();
}

void WeightChannel::start() {
  const at::NoGradGuard no_grad;
  Copy copy{*std::exchange(waiting_, std::nullopt), nullptr, std::make_shared<c10::Event>(stream_->device_type())};
  if (copy.source.done) copy.source.done->block(*stream_);
  const c10::StreamGuard guard(*stream_);
  std::shared_ptr<WeightBlocks> version =
      host_ ? host_->take() : std::shared_ptr<WeightBlocks>(layout_->make(device_, /*page_locked=*/false));
  version->step = copy.source.version->step;
  for (size_t b = 0; b < version->blocks.size(); ++b) {
    version->blocks[b].copy_(copy.source.version->blocks[b], /*non_blocking=*/true);
  }
  copy.done->record(*stream_);
  copy.version = std::move(version);
  copies_.push_back(std::move(copy));
}

}  // namespace trainkit::detail
