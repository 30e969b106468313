#pragma once
/// Float32 matrix products through oneDNN.

namespace trainkit {

/// Routes LibTorch's float32 matrix products on the CPU (aten::mm and aten::addmm, hence every Linear and its backward)
/// to oneDNN instead of MKL. Applies to all models of this process until it ends. Products below a million
/// multiplications are not routed, and neither is attention, which calls neither operation. On AMD processors MKL takes
/// twice as long as oneDNN.
///
/// Enabled only on processors where it is faster and where oneDNN is as accurate as MKL, which the first call tests on
/// one product. Disabled on Intel processors, where MKL is as fast. The environment variable TRAINKIT_ONEDNN_MATMUL=0
/// or 1 overrides this. The decision does not depend on timing, so that a resumed run has the bits of an uninterrupted
/// one. Call it before the first step, from any thread; every trainer does. @return whether oneDNN is used.
bool use_onednn_matmul();

}  // namespace trainkit
