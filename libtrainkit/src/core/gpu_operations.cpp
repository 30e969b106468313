#include "core/gpu_operations.h"

namespace trainkit::detail {
namespace {

thread_local bool is_wanted = false;

}  // namespace

GpuOperations::GpuOperations(bool on) : before_(is_wanted) { is_wanted = is_wanted || on; }
GpuOperations::~GpuOperations() { is_wanted = before_; }
bool GpuOperations::wanted() { return is_wanted; }

}  // namespace trainkit::detail
