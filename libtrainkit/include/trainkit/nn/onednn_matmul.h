#pragma once
/// Matrix products in float32 through oneDNN.

namespace trainkit {

/// Sends LibTorch's own float32 products of matrices on the CPU (aten::mm and aten::addmm, with them every Linear and
/// its backward) to oneDNN instead of MKL, for all models of this process and until its end; products below a million
/// multiplications stay where they are, and so does attention, which calls neither. On AMD processors MKL takes twice
/// as long as oneDNN.
///
/// Only where that is known to pay and oneDNN's result is as accurate as MKL's, which is tried on one product when it
/// is called first; not on Intel's processors, on which MKL is as fast. TRAINKIT_ONEDNN_MATMUL=0 or 1 in the
/// environment decides otherwise. Nothing is decided by a clock: a run that goes on has the bits of one that was not
/// stopped. Call it before the first step; any thread. Every trainer does. @return whether oneDNN is used.
bool use_onednn_matmul();

}  // namespace trainkit
