#include "core/device/gpu_operations.h"

namespace trainkit::detail {
namespace {

thread_local bool is_wanted = false;
thread_local bool are_kernels_wanted = true;

}  // namespace

GpuOperations::GpuOperations(bool on, bool has_kernels) : was_wanted_(is_wanted), had_kernels_(are_kernels_wanted) {
  is_wanted = is_wanted || on;
  are_kernels_wanted = are_kernels_wanted && has_kernels;
}
GpuOperations::~GpuOperations() {
  is_wanted = was_wanted_;
  are_kernels_wanted = had_kernels_;
}
bool GpuOperations::wanted() { return is_wanted; }
bool GpuOperations::has_kernels() { return are_kernels_wanted; }

}  // namespace trainkit::detail
