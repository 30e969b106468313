#pragma once
// Finds out which rank is gone, when something between the ranks has broken. Internal to ProcessGroup.

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace trainkit::detail {

/// Answers the other ranks from a thread of its own, and asks them.
///
/// A collective that fails says which connection broke, not which rank did it: a survivor that leaves breaks
/// connections too. So the first to see a failure calls the others through the store. A rank that lives answers within
/// milliseconds, also while its main thread computes; one that was killed or stopped does not. What the caller finds is
/// kept in the store as the verdict, which all survivors report.
class RollCall {
 public:
  RollCall(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t world_size);
  ~RollCall();
  RollCall(const RollCall&) = delete;
  RollCall& operator=(const RollCall&) = delete;

  /// Where this rank is, for the answers ("step 12 in backward").
  void set_position(std::string position);
  std::string position() const;

  /// What the survivors agree has happened: "rank 1 lost", "rank 2 left: ..."; asks for at most `patience`.
  std::string verdict(std::chrono::milliseconds patience);

  /// Why this rank leaves; the first call counts.
  void leave(std::string_view reason);
  bool has_left() const { return left_; }

 private:
  void answer_until_stopped();
  void answer(c10d::Store& store, const std::string& call);
  std::string ask(std::chrono::milliseconds patience);
  std::string key(const char* name, int64_t rank) const { return std::string(name) + "/" + std::to_string(rank); }

  c10::intrusive_ptr<c10d::Store> store_;  // of the asking thread
  const int64_t rank_;
  const int64_t world_size_;
  mutable std::mutex mutex_;
  std::string position_;
  std::optional<std::string> verdict_;
  std::mutex store_mutex_;  // a store's client is for one thread at a time
  std::atomic<bool> left_ = false;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace trainkit::detail
