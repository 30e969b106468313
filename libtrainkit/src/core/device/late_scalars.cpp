#include "core/device/late_scalars.h"

#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <limits>
#include <utility>

#include "core/machine/shapes_only.h"

namespace trainkit {

// Note [Asynchronous scalars]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Tensor::item() would make the host wait for the device in every step. Instead the scalars are stacked into one tensor
// and copied with one non-blocking copy into page-locked memory (a copy to pageable memory would block); a single one
// is copied as it is. An event recorded on the same stream after the copy tells when the host may read it: ready()
// queries the event and never waits.
// After an error of the device, freeing the page-locked memory would throw from a destructor: it is left to the end of
// the process.

namespace {

/// Reads a scalar on the CPU.
double value_of(const at::Tensor& scalar) {
  return scalar.defined() ? detail::host_value(scalar) : std::numeric_limits<double>::quiet_NaN();
}

/// Returns one tensor of all scalars.
at::Tensor stacked(const std::vector<at::Tensor>& scalars, at::Device device) {
  std::vector<at::Tensor> parts;
  parts.reserve(scalars.size());
  for (const at::Tensor& scalar : scalars) {
    parts.push_back(scalar.defined() ? scalar.to(device, at::kDouble)
                                     : at::full({}, std::numeric_limits<double>::quiet_NaN(),
                                                at::TensorOptions(device).dtype(at::kDouble)));
  }
  return at::stack(parts);
}

}  // namespace

LateScalars::LateScalars(const std::vector<at::Tensor>& scalars) {
  const c10::AutoGradMode no_grad(false);
  at::Device device = at::kCPU;
  for (const at::Tensor& scalar : scalars) {
    if (scalar.defined() && !scalar.is_cpu()) device = scalar.device();
  }
  if (device.is_cpu()) {
    values_.reserve(scalars.size());
    for (const at::Tensor& scalar : scalars) values_.push_back(value_of(scalar));
    return;
  }
  host_ = (scalars.size() == 1 ? scalars[0] : stacked(scalars, device)).to(at::kCPU, /*non_blocking=*/true);
  const c10::impl::VirtualGuardImpl backend(device.type());
  copied_.emplace(device.type());
  copied_->record(backend.getStream(device));
}

LateScalars& LateScalars::operator=(LateScalars other) noexcept {
  std::swap(values_, other.values_);
  std::swap(host_, other.host_);
  std::swap(copied_, other.copied_);
  return *this;
}

LateScalars::~LateScalars() {
  if (!copied_ || !host_.defined()) return;
  try {
    copied_->query();
  } catch (const std::exception&) {
    host_.unsafeReleaseTensorImpl();
  }
}

bool LateScalars::ready() const { return !copied_ || copied_->query(); }

std::vector<double> LateScalars::values() const {
  if (!copied_) return values_;
  copied_->synchronize();
  const at::Tensor values = host_.to(at::kDouble);
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

}  // namespace trainkit
