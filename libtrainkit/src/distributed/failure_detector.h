#pragma once
// Finds out which rank is gone, when something between the ranks has broken. Internal to ProcessGroup.

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

/// "rank 1", "ranks 1, 2, ...": the first `at_most`.
std::string rank_list(const std::vector<int64_t>& ranks, size_t at_most = std::numeric_limits<size_t>::max());

/// Answers the other ranks from a thread of its own, and asks them.
///
/// A collective that fails says which connection broke, not which rank did it: a survivor that leaves breaks
/// connections too. So the first to see a failure calls the others through the store. A rank that lives answers within
/// milliseconds, also while its main thread computes; one that was killed or stopped does not. What the caller finds is
/// kept in the store as the verdict, which all survivors report.
///
/// c10d waits without limit for what the store answers. Its holder may be the one that stands still, so every question
/// is asked from a thread that can be left behind.
class FailureDetector {
 public:
  FailureDetector(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t world_size);
  ~FailureDetector();
  FailureDetector(const FailureDetector&) = delete;
  FailureDetector& operator=(const FailureDetector&) = delete;

  /// Where this rank is, for the answers ("step 12 in backward").
  void set_position(std::string position);
  std::string position() const;

  /// What the survivors agree has happened: "rank 1 lost", "rank 2 left: ..."; asks for at most `patience`.
  std::string verdict(std::chrono::milliseconds patience);

  /// Why this rank leaves; the first call counts.
  void leave(std::string_view reason);
  bool has_left() const;

 private:
  struct State;  // shared with threads that a store without answers may keep for ever
  std::shared_ptr<State> state_;
};

}  // namespace trainkit::detail
