#pragma once
/// Random decisions of a draw.

#include <cstdint>
#include <initializer_list>
#include <string>

#include "trainkit/core/random.h"

namespace trainkit::differential {

/// Draws from a counter-based generator: the same on every platform.
class Dice {
 public:
  explicit Dice(uint64_t key) : random_(key) {}
  /// Uniform in [low, high].
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_.below(static_cast<uint64_t>(high - low + 1)));
  }
  /// True `percent` times in a hundred.
  bool chance(int64_t percent) { return between(0, 99) < percent; }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + between(0, static_cast<int64_t>(values.size()) - 1));
  }
  std::string one(std::initializer_list<const char*> values) { return one_of(values); }

 private:
  RandomStream random_;
};

}  // namespace trainkit::differential
