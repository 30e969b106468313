#include "trainkit/amp/autocast.h"

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>

namespace trainkit {

AutocastGuard::AutocastGuard(at::Device device, at::ScalarType dtype, bool enabled, bool cache_enabled)
    : device_type_(device.type()),
      previous_dtype_(at::autocast::get_autocast_dtype(device_type_)),
      previous_enabled_(at::autocast::is_autocast_enabled(device_type_)),
      previous_cache_enabled_(at::autocast::is_autocast_cache_enabled()) {
  TORCH_CHECK_TYPE(!enabled || dtype == at::kBFloat16 || dtype == at::kHalf,
                   "AutocastGuard: dtype must be kBFloat16 or kHalf, got ", dtype);
  // Nothing below throws, so a guard whose constructor throws has changed no setting.
  at::autocast::set_autocast_enabled(device_type_, enabled);
  if (enabled) at::autocast::set_autocast_dtype(device_type_, dtype);
  at::autocast::set_autocast_cache_enabled(cache_enabled);
  at::autocast::increment_nesting();
}

AutocastGuard::~AutocastGuard() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_type_, previous_enabled_);
  at::autocast::set_autocast_dtype(device_type_, previous_dtype_);
  at::autocast::set_autocast_cache_enabled(previous_cache_enabled_);
}

}  // namespace trainkit
