#pragma once
/// The batches of a session from another source than a Prefetcher.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "spec.h"
#include "trainkit/data/batch.h"
#include "trainkit/data/queue_source.h"

namespace trainkit::differential {

/// The batches that the loader of a program gives in its steps, copied. A queue gets them from another thread.
class Feed {
 public:
  Feed(const Spec& spec, int64_t batch_size, int64_t rank, int64_t ranks);
  ~Feed();
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;

  /// The queue; null if the program passes the batches.
  QueueSource* queue() const { return queue_.get(); }
  /// Begins to push after the batches that the queue has had, which a checkpoint may have restored.
  void start();
  const Batch& batch(int64_t i) const { return batches_.at(static_cast<size_t>(i)); }

 private:
  std::vector<Batch> batches_;
  std::unique_ptr<QueueSource> queue_;
  std::thread host_;
};

}  // namespace trainkit::differential
