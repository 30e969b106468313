#pragma once
/// Triplets whose negatives are drawn where the batch is: on the device that trains.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "gpt2_recommender/triplets.h"
#include "trainkit/data/batch.h"

namespace trainkit::rec {

/// What BPR trains on, each (N) int64 on one device.
struct Triplets {
  at::Tensor users, positives, negatives;
};

/// A TripletDataset whose batches hold numbers of rows alone: users, items and negatives are made of them on the
/// device, by one kernel, in the step. The same triplets as the data set's, bit for bit, for the same seed, epoch and
/// row.
///
///   DeviceTriplets on_device(triplets, {at::Device("cuda:0")});
///   auto loader = Prefetcher::create(on_device.rows(), ...);       // fields row and key, int64 scalars
///   Triplets t = on_device.draw(batch.to("cuda:0"));
///
/// The pairs and the history, 8 bytes a row and a bit for each user and item, are copied to each device. Any number of
/// threads.
class DeviceTriplets {
 public:
  /// Throws c10::ValueError for a history without bits (over 256 MiB of them).
  DeviceTriplets(std::shared_ptr<const TripletDataset> triplets, const std::vector<at::Device>& devices);

  /// Row i is the number i and the key of its seed and epoch.
  std::shared_ptr<const Dataset> rows() const;

  /// The triplets of a batch of rows() on one of the devices, or on the CPU. Never reads from a device that our kernels
  /// run on; for another one it draws on the host, which synchronises. On the CPU a row out of range throws
  /// c10::IndexError; on CUDA it traps.
  Triplets draw(const Batch& batch) const;

  /// Bytes on each device.
  int64_t table_bytes() const;

 private:
  struct Tables {
    at::Tensor pairs, bits;  // int64 and int32, whose bits are those of TripletTables
  };
  std::shared_ptr<const TripletDataset> triplets_;
  std::vector<Tables> copies_;
};

}  // namespace trainkit::rec
