#pragma once
// Advantages into given memory, and as a scan over time.

#include "trainkit/rl/gae.h"

namespace trainkit::detail {

/// gae() into memory that is there: contiguous tensors of the shape of the input.
void gae_into(const GaeInput& steps, const GaeOptions& options, const GaeResult& result);

/// Computes the advantages of gae() with operations on whole tensors, on any device: A_t = delta_t + c_t A_(t+1) in
/// log2(T) rounds, each of which doubles the number of steps that every A_t contains (Hillis and Steele 1986, Data
/// parallel algorithms).
at::Tensor scan_advantages(const GaeInput& steps, const GaeOptions& options);

}  // namespace trainkit::detail
