#include "core/device/gpu_kernel_support.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#ifdef TRAINKIT_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>

#include "core/device/gpu_operations.h"

namespace trainkit::detail {
namespace {

enum class Answer : uint8_t { kUnknown, kYes, kNo };

/// State of one CUDA device.
struct DeviceState {
  std::atomic<Answer> has_kernels = Answer::kUnknown;
  std::atomic<bool> is_reported = false;
};

DeviceState& state_of(c10::DeviceIndex index) {
  static std::array<DeviceState, 128> states;  // one for each value of DeviceIndex
  return states[static_cast<size_t>(index)];
}

/// Returns the device's index, or the current device's index if it has none.
c10::DeviceIndex index_of([[maybe_unused]] c10::Device device) {
#ifdef TRAINKIT_WITH_CUDA
  return device.has_index() ? device.index() : c10::cuda::current_device();
#else
  TORCH_CHECK(false, "this build has no CUDA");
#endif
}

bool runs_kernels(c10::DeviceIndex index) {
  std::atomic<Answer>& answer = state_of(index).has_kernels;
  if (answer.load(std::memory_order_relaxed) == Answer::kUnknown) {
    const bool found =
        kernel_code_for(parse_kernel_codes(compiled_kernel_codes()), compute_capability(c10::Device(c10::kCUDA, index)))
            .has_value();
    answer.store(found ? Answer::kYes : Answer::kNo, std::memory_order_relaxed);
  }
  return answer.load(std::memory_order_relaxed) == Answer::kYes;
}

/// Returns whether the code runs on a device. It need not be the best code for it.
bool runs_on(const KernelCode& code, int capability) {
  if (code.suffix == 'a') return code.capability == capability;
  const bool is_same_major = code.capability / 10 == capability / 10;
  return code.capability <= capability && (is_same_major || (code.is_ptx && code.suffix == '\0'));
}

}  // namespace

std::string KernelCode::name() const {
  return fmt::format("{}_{}{}", is_ptx ? "compute" : "sm", capability,
                     suffix == '\0' ? std::string() : std::string(1, suffix));
}

std::vector<KernelCode> parse_kernel_codes(std::string_view names) {
  std::vector<KernelCode> codes;
  while (!names.empty()) {
    std::string_view name = names.substr(0, names.find(' '));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    KernelCode code{.is_ptx = name.starts_with("compute_")};
    if (!code.is_ptx && !name.starts_with("sm_")) continue;
    name.remove_prefix(name.find('_') + 1);
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), code.capability);
    if (error != std::errc()) continue;
    const std::string_view rest(end, static_cast<size_t>(name.data() + name.size() - end));
    if (rest.size() > 1 || (rest.size() == 1 && rest != "a" && rest != "f")) continue;
    if (!rest.empty()) code.suffix = rest[0];
    codes.push_back(code);
  }
  return codes;
}

std::optional<KernelCode> kernel_code_for(const std::vector<KernelCode>& codes, int capability) {
  std::optional<KernelCode> best;
  for (const KernelCode& code : codes) {
    if (!runs_on(code, capability)) continue;
    const bool is_better =
        !best || (best->is_ptx && !code.is_ptx) || (best->is_ptx == code.is_ptx && best->capability < code.capability);
    if (is_better) best = code;
  }
  return best;
}

const char* compiled_kernel_codes() { return TRAINKIT_KERNEL_CODES; }

int compute_capability(c10::Device device) {
  TORCH_CHECK(device.is_cuda(), "expected a CUDA device, got ", device);
  [[maybe_unused]] int major = 0, minor = 0;
#ifdef TRAINKIT_WITH_CUDA
  const int index = index_of(device);
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
  return 10 * major + minor;
#else
  TORCH_CHECK(false, "this build has no CUDA");
#endif
}

std::string missing_kernels_warning(c10::Device device) {
  const c10::DeviceIndex index = index_of(device);
  if (runs_kernels(index) || state_of(index).is_reported.exchange(true)) return {};
  return missing_kernels_text(index, compute_capability(device), compiled_kernel_codes());
}

std::string missing_kernels_text(int device, int capability, std::string_view codes) {
  const std::string architecture = fmt::format("{}.{}", capability / 10, capability % 10);
  const std::string compiled = codes.empty() ? "no kernels" : fmt::format("kernels for {} only", codes);
  return fmt::format(
      "cuda:{} has compute capability {}, but this build has {}; LibTorch's operations are used instead; rebuild with "
      "TORCH_CUDA_ARCH_LIST={}",
      device, architecture, compiled, architecture);
}

}  // namespace trainkit::detail

namespace trainkit {

bool has_gpu_kernels(c10::Device device) {
  if (!detail::GpuOperations::has_kernels()) return false;
  const c10::DeviceIndex index = detail::index_of(device);
  if (detail::runs_kernels(index)) return true;
  if (!detail::state_of(index).is_reported.load(std::memory_order_relaxed)) {
    if (const std::string text = detail::missing_kernels_warning(device); !text.empty()) {
      TORCH_WARN(text);
    }
  }
  return false;
}

bool plans_gpu_memory() { return detail::GpuOperations::wanted(); }

}  // namespace trainkit
