#pragma once
// Runs a replica's forward in the precision of the computation.

#include <cstdint>

#include "trainkit/amp/autocast.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/train/step_options.h"

namespace trainkit::detail {

/// Returns forward(), called under autocast unless `precision` is kFp32. Casts of weights are kept only for a single
/// replica: the end of one replica's forward would clear those of the others.
template <class F>
decltype(auto) with_precision(const DeviceReplicator& devices, int64_t replica, Precision precision, F&& forward) {
  if (precision == Precision::kFp32) return forward();
  const AutocastGuard autocast(devices.device(replica), precision == Precision::kBf16 ? at::kBFloat16 : at::kHalf,
                               /*enabled=*/true, /*cache_enabled=*/devices.replicas() == 1);
  return forward();
}

}  // namespace trainkit::detail
