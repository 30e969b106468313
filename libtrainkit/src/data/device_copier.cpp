#include "data/device_copier.h"

#include <ATen/core/Tensor.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "core/recorded.h"

namespace trainkit::detail {
namespace {

at::Device with_index(at::Device device) {
  return device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

}  // namespace

DeviceCopier::DeviceCopier(at::Device device)
    : device_(with_index(device)),
      stream_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device_, /*isHighPriority=*/true)) {}

void DeviceCopier::begin(RingSlot* slot) {
  const detail::ProfileStage stage("start a copy to the device");
  const c10::StreamGuard guard(stream_);
  Batch batch = slot->slot.lend(slot->slot.rows_read, slot->slot.padding_rows).to(device_, /*non_blocking=*/true);
  c10::Event done(device_.type());
  done.record(stream_);
  in_progress_.emplace(Copy{slot, std::move(batch), std::move(done)});
}

Batch DeviceCopier::finish() {
  const c10::Stream current = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  in_progress_->done.block(current);
  // The allocator must not reuse the memory before the consumer's stream is done. See Note [Copy ahead].
  for (const at::Tensor& tensor : in_progress_->batch.tensors()) tensor.record_stream(current);
  Batch batch = std::move(in_progress_->batch);
  in_progress_.reset();
  return batch;
}

RingSlot* DeviceCopier::discard() {
  if (!in_progress_) return nullptr;
  in_progress_->done.synchronize();
  RingSlot* slot = in_progress_->slot;
  in_progress_.reset();
  return slot;
}

}  // namespace trainkit::detail
