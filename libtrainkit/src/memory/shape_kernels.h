#pragma once
/// Operations that LibTorch has no meta kernel for, see Note [Shapes without values].

namespace trainkit::detail {

/// Registers kernels that return the results of these operations on the device "meta". Call once.
void register_shape_kernels();

}  // namespace trainkit::detail
