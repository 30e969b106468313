#include "data/loader/device_copier.h"

#include <ATen/core/Tensor.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "core/tensors/recorded.h"

namespace trainkit::detail {
namespace {

/// Makes a copy stream of a device.
c10::Stream stream_of(at::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  return guard.getStreamFromGlobalPool(device.has_index() ? device : guard.getDevice(), /*isHighPriority=*/true);
}

/// Returns the batch `host` with the copies of its parts.
Batch with_shards(const Batch& host, const std::vector<Batch>& parts) {
  auto content = std::make_shared<Batch::Content>(*host.content());
  for (const Batch& part : parts) content->shards.push_back(part.content());
  return Batch(std::move(content));
}

}  // namespace

DeviceCopier::DeviceCopier(const std::vector<at::Device>& devices) {
  for (const at::Device device : devices) streams_.push_back(stream_of(device));
}

void DeviceCopier::begin(RingSlot* slot) {
  const detail::ProfileStage stage("start a copy to the device");
  Copy copy{slot, slot->slot.lend(slot->slot.rows_read, slot->slot.padding_rows), {}};
  const auto count = std::ssize(streams_);
  for (int64_t i = 0; i < count; ++i) {
    const c10::Stream stream = streams_[static_cast<size_t>(i)];
    const c10::StreamGuard guard(stream);
    copy.parts.push_back({copy.host.shard(i, count, stream.device()), c10::Event(stream.device_type())});
    copy.parts.back().done.record(stream);
  }
  if (count == 1) copy.host = Batch();  // releases the slot
  in_progress_.emplace(std::move(copy));
}

Batch DeviceCopier::finish() {
  std::vector<Batch> parts;
  for (size_t i = 0; i < streams_.size(); ++i) {
    const c10::Stream current = c10::impl::VirtualGuardImpl(streams_[i].device_type()).getStream(streams_[i].device());
    Part& part = in_progress_->parts[i];
    part.done.block(current);
    // The allocator must not reuse the memory before the consumer's stream is done. See Note [Copy ahead].
    for (const at::Tensor& tensor : part.rows.tensors()) tensor.record_stream(current);
    parts.push_back(std::move(part.rows));
  }
  const Batch host = std::move(in_progress_->host);
  in_progress_.reset();
  return parts.size() == 1 ? std::move(parts.front()) : with_shards(host, parts);
}

RingSlot* DeviceCopier::discard() {
  if (!in_progress_) return nullptr;
  for (Part& part : in_progress_->parts) part.done.synchronize();
  RingSlot* slot = in_progress_->slot;
  in_progress_.reset();
  return slot;
}

}  // namespace trainkit::detail
