#pragma once

enum class Fault {
  kDivergentBarrier,
  kOverrun,
  kStraddle,
  kSharedOverrun,
  kDynamicOverrun,
  kTrap,
  kMissingLane,
  kOwnLane,
  kNone  // reads x[n] after x[0]
};

/// Launches a kernel that has the fault. @param n an index into x.
void launch(Fault fault, void* x, int n);
/// One block of 64 threads.
void launch_exchange(int* out, int* sum);
