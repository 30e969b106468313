#include "core/device/host_tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#ifdef TRAINKIT_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

#include "core/base/round_up.h"

namespace trainkit::detail {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kAlignment = 64;

bool page_lock([[maybe_unused]] void* memory, [[maybe_unused]] int64_t bytes) {
#ifdef TRAINKIT_WITH_CUDA
  if (cudaHostRegister(memory, static_cast<size_t>(bytes), cudaHostRegisterPortable) == cudaSuccess) return true;
  (void)cudaGetLastError();  // pageable memory works too, only slower
#endif
  return false;
}

void free_memory(void* memory, [[maybe_unused]] bool is_locked) {
#ifdef TRAINKIT_WITH_CUDA
  if (is_locked && cudaHostUnregister(memory) != cudaSuccess)
    (void)cudaGetLastError();  // CUDA is shutting down with the process
#endif
  std::free(memory);
}

at::Tensor make_memory(int64_t bytes, bool page_locked) {
  const bool huge = bytes >= 2 * kHugePage;
  const int64_t size = round_up(std::max<int64_t>(bytes, 1), huge ? kHugePage : kPage);
  void* memory = std::aligned_alloc(static_cast<size_t>(huge ? kHugePage : kPage), static_cast<size_t>(size));
  if (!memory) throw std::bad_alloc();
  // Huge pages are page-locked, and touched for the first time, much faster.
  if (huge) madvise(memory, static_cast<size_t>(size), MADV_HUGEPAGE);
  const bool is_locked = page_locked && page_lock(memory, size);
  return at::from_blob(
      memory, {size}, [is_locked](void* begin) { free_memory(begin, is_locked); }, at::kByte);
}

/// Returns a contiguous tensor like `tensor` at byte `begin` of `memory`.
at::Tensor view_of(const at::Tensor& memory, int64_t begin, const at::Tensor& tensor) {
  return memory.narrow(0, begin, static_cast<int64_t>(tensor.nbytes())).view(tensor.scalar_type()).view(tensor.sizes());
}

/// Waits for the copies of several devices, even if one of them fails: their memory must not be reused before.
class DeviceWaits {
 public:
  DeviceWaits() = default;
  ~DeviceWaits() {
    for (const at::Device device : devices_) {
      try {
        c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
      } catch (const std::exception&) {  // finish() throws it, unless another exception is active
      }
    }
  }
  DeviceWaits(const DeviceWaits&) = delete;
  DeviceWaits& operator=(const DeviceWaits&) = delete;

  void expect(at::Device device) {
    if (std::find(devices_.begin(), devices_.end(), device) == devices_.end()) devices_.push_back(device);
  }
  void finish() {
    for (; !devices_.empty(); devices_.pop_back()) {
      c10::impl::VirtualGuardImpl(devices_.back().type()).getStream(devices_.back()).synchronize();
    }
  }

 private:
  std::vector<at::Device> devices_;
};

bool is_remote(const at::Tensor& tensor) { return tensor.defined() && !tensor.is_cpu(); }

int64_t buffer_bytes(const at::Tensor& tensor) {
  return is_remote(tensor) ? round_up(static_cast<int64_t>(tensor.nbytes()), kAlignment) : 0;
}

/// Returns whether the memory of a CPU tensor can be copied as one range of bytes.
bool is_one_range(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized() &&
         !tensor.is_conj() && !tensor.is_neg() && tensor.is_non_overlapping_and_dense();
}

/// Replaces the CPU tensors among `copies` by copies, in `memory` from `begin` on if they are one range of bytes.
void copy_cpu_tensors(std::vector<at::Tensor>& copies, const at::Tensor& memory, int64_t begin, LaterCopies* pending) {
  std::vector<ByteCopy> byte_copies;
  for (size_t i = 0; i < copies.size(); ++i) {
    at::Tensor& tensor = copies[i];
    if (!tensor.defined() || !tensor.is_cpu()) continue;
    const at::Tensor source = tensor.detach();
    if (!is_one_range(source)) {
      tensor = source.clone();
      continue;
    }
    const auto bytes = static_cast<int64_t>(source.nbytes());
    const at::Tensor flat = memory.narrow(0, begin, bytes).view(source.scalar_type());
    tensor = flat.as_strided(source.sizes(), source.strides());
    begin += round_up(bytes, kAlignment);
    (pending && i >= pending->first ? pending->copies : byte_copies)
        .push_back({tensor.mutable_data_ptr(), source.const_data_ptr(), static_cast<size_t>(bytes)});
  }
  copy_in_parallel(byte_copies);
}

}  // namespace

at::Tensor HostBuffer::take(int64_t bytes, bool page_locked) {
  const bool is_free = memory_.defined() && memory_.storage().use_count() == 1;
  if (!is_free || memory_.numel() < bytes) {
    memory_.reset();
    memory_ = make_memory(bytes, page_locked);
  }
  return memory_.narrow(0, 0, bytes);
}

std::vector<at::Tensor> copy_to_host(std::span<const at::Tensor> tensors, HostBuffer& buffer, bool copies_cpu,
                                     LaterCopies* pending) {
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> copies(tensors.begin(), tensors.end());
  int64_t remote_bytes = 0, cpu_bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    remote_bytes += buffer_bytes(tensor);
    if (copies_cpu && is_one_range(tensor)) cpu_bytes += round_up(static_cast<int64_t>(tensor.nbytes()), kAlignment);
  }
  const int64_t bytes = remote_bytes + cpu_bytes;
  const at::Tensor memory = bytes > 0 ? buffer.take(bytes, remote_bytes > 0) : at::empty({0}, at::kByte);
  if (copies_cpu) copy_cpu_tensors(copies, memory, remote_bytes, pending);
  DeviceWaits device_waits;
  int64_t begin = 0;
  for (size_t i = 0; i < copies.size(); ++i) {
    if (!is_remote(tensors[i])) continue;
    const at::Tensor source = tensors[i].detach();
    copies[i] = view_of(memory, begin, source);
    if (source.numel() == 0) continue;
    device_waits.expect(source.device());
    copies[i].copy_(source, /*non_blocking=*/true);
    begin += buffer_bytes(source);
  }
  device_waits.finish();
  return copies;
}

HostTensors::HostTensors(std::vector<at::Tensor> tensors, int64_t at_a_time)
    : tensors_(std::move(tensors)), at_a_time_(at_a_time) {}

at::Tensor HostTensors::next() {
  const size_t i = next_++;
  if (i >= begin_ + copied_.size()) {
    begin_ = i;
    copied_.clear();  // releases the buffer for reuse
    int64_t bytes = 0;
    size_t end = i;
    for (; end < tensors_.size() && (end == i || bytes + buffer_bytes(tensors_[end]) <= at_a_time_); ++end) {
      bytes += buffer_bytes(tensors_[end]);
    }
    copied_ = copy_to_host(std::span(tensors_).subspan(i, end - i), buffer_);
  }
  return copied_[i - begin_].detach().resolve_conj().resolve_neg().contiguous();
}

}  // namespace trainkit::detail
