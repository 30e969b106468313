#pragma once
/// Makes triplets on the device that trains.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "gpt2_recommender/triplets.h"
#include "trainkit/data/batch.h"

namespace trainkit::rec {

/// Triplets of a batch, each (N) int64 on one device.
struct Triplets {
  at::Tensor users, positives, negatives;
};

/// Makes the triplets of a TripletDataset on the device. A batch holds only row indices and keys; one kernel turns them
/// into users, positives and negatives as part of the step. For the same seed, epoch and row the triplets are
/// bit-identical to those of the data set (Note [Negative draw] in triplet_draw.h).
///
///   DeviceTriplets on_device(triplets, {at::Device("cuda:0")});
///   auto loader = Prefetcher::create(on_device.rows(), ...);       // fields row and key, int64 scalars
///   Triplets t = on_device.draw(batch.to("cuda:0"));
///
/// Copies the pairs (8 bytes per row) and the history (1 bit per user and item) to each device. Thread-safe.
class DeviceTriplets {
 public:
  /// Throws c10::ValueError if the history has no bits because they would exceed 256 MiB.
  DeviceTriplets(std::shared_ptr<const TripletDataset> triplets, const std::vector<at::Device>& devices);

  /// Returns a data set whose row i holds the index i and the key of its seed and epoch.
  std::shared_ptr<const Dataset> rows() const;

  /// Returns the triplets of a batch of rows(), which is on one of the devices or on the CPU. On a GPU that our kernels
  /// support it does not synchronise; for other devices it draws on the host and synchronises. A row out of range
  /// throws c10::IndexError on the CPU and traps on CUDA.
  Triplets draw(const Batch& batch) const;

  /// Bytes of the tables on each device.
  int64_t table_bytes() const;

 private:
  struct Tables {
    at::Tensor pairs, bits;  // int64 and int32, reinterpreted as the unsigned arrays of TripletTables
  };
  std::shared_ptr<const TripletDataset> triplets_;
  std::vector<Tables> copies_;
};

}  // namespace trainkit::rec
