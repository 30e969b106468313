#pragma once
/// Work of threads whose results are used in order.

#include <absl/status/status.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "core/machine/parallel.h"

namespace trainkit::detail {

/// Runs `work(item, thread)`, thread < threads, on LibTorch's threads and passes the items to `pass_on(item)` in their
/// order, on the calling thread, which works too. Holds `capacity` items, which are used again. `next(item)`, called by
/// one thread at a time, sets the next item or returns false. Returns the first error of `pass_on`, after which no item
/// begins; rethrows the first exception.
template <class Item, class Next, class Work, class PassOn>
absl::Status run_in_order(int64_t threads, size_t capacity, Next next, Work work, PassOn pass_on) {
  struct Place {
    Item item = {};
    bool is_ready = false;
  };
  std::vector<Place> places(capacity);
  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by the mutex; the items of places [passed, begun), modulo capacity, are in use.
  size_t begun = 0, passed = 0;
  bool has_next = true, stopped = false;
  absl::Status status;

  const auto begin_one = [&](std::unique_lock<std::mutex>& lock, int64_t thread) {
    const size_t at = begun;
    Place& place = places[at % capacity];
    has_next = next(place.item);
    if (!has_next) return changed.notify_all();
    ++begun;
    lock.unlock();
    work(place.item, thread);
    lock.lock();
    place.is_ready = true;
    if (at == passed) changed.notify_all();
  };
  const auto pass_on_one = [&](std::unique_lock<std::mutex>& lock) {
    Place& place = places[passed % capacity];
    lock.unlock();
    absl::Status result = pass_on(place.item);
    lock.lock();
    place.is_ready = false;
    ++passed;
    if (!result.ok()) status = std::move(result), stopped = true;
    changed.notify_all();
  };
  const auto run = [&](int64_t thread) {
    const bool passes_on = thread == 0;
    try {
      std::unique_lock lock(mutex);
      while (!stopped && (has_next || (passes_on && passed < begun))) {  // NOLINT(bugprone-infinite-loop): in lambdas
        if (passes_on && passed < begun && places[passed % capacity].is_ready) {
          pass_on_one(lock);
        } else if (has_next && begun - passed < capacity) {
          begin_one(lock, thread);
        } else {
          changed.wait(lock);
        }
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      stopped = true;
      changed.notify_all();
      throw;
    }
  };
  parallel_for(0, threads, 1, [&](int64_t first, int64_t last) {
    for (int64_t thread = first; thread < last; ++thread) run(thread);
  });
  return status;
}

}  // namespace trainkit::detail
