#pragma once
// Finds out which rank is lost after a collective has failed. Internal to ProcessGroup.

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace trainkit::detail {

/// Formats "rank 1" or "ranks 1, 2, ...", listing the first `at_most` ranks.
std::string rank_list(const std::vector<int64_t>& ranks, size_t at_most = std::numeric_limits<size_t>::max());

/// Answers the other ranks from a background thread, and asks them after a failure. See Note [Failure detection].
class FailureDetector {
 public:
  FailureDetector(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t world_size);
  ~FailureDetector();
  FailureDetector(const FailureDetector&) = delete;
  FailureDetector& operator=(const FailureDetector&) = delete;

  /// Sets the position that this rank reports in its answers ("step 12 in backward").
  void set_position(std::string position);
  std::string position() const;

  /// Returns the cause on which the survivors agree: "rank 1 lost", "rank 2 left: ...". Asks for at most `patience`.
  std::string verdict(std::chrono::milliseconds patience);

  /// Returns whether another rank has found the cause of a failure.
  bool has_verdict() const;

  /// Records why this rank leaves. Only the first call has an effect.
  void leave(std::string_view reason);
  bool has_left() const;

 private:
  struct State;  // shared with threads that may be blocked in the store forever
  std::shared_ptr<State> state_;
};

}  // namespace trainkit::detail
