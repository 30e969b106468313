#pragma once
/// How often something happens in a run.

#include <chrono>
#include <cstdint>
#include <string>

namespace trainkit {

/// An interval in optimizer steps, in epochs, or in time. 0: never.
///
///   TrainerOptions options{.eval_every = Interval::epochs(1), .save_every = std::chrono::minutes(10)};
class Interval {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): a number is a number of steps
  constexpr Interval(int64_t steps = 0) : steps_(steps) {}
  template <class Rep, class Period>
  // NOLINTNEXTLINE(google-explicit-constructor): as above
  constexpr Interval(std::chrono::duration<Rep, Period> time)
      : time_(std::chrono::duration_cast<std::chrono::milliseconds>(time)) {}
  /// For sources with epochs.
  static constexpr Interval epochs(int64_t count) {
    Interval interval;
    interval.epochs_ = count;
    return interval;
  }

  /// Whether it ever happens.
  constexpr explicit operator bool() const { return steps_ > 0 || epochs_ > 0 || time_.count() > 0; }
  /// Two of these are 0.
  constexpr int64_t steps() const { return steps_; }
  constexpr int64_t epochs() const { return epochs_; }
  constexpr std::chrono::milliseconds time() const { return time_; }

  friend constexpr bool operator==(const Interval&, const Interval&) = default;

 private:
  int64_t steps_ = 0;
  int64_t epochs_ = 0;
  std::chrono::milliseconds time_{0};
};

/// "100 steps", "2 epochs" or "600000 ms".
std::string to_string(const Interval& interval);

}  // namespace trainkit
