#pragma once
/// Temporary memory for one call, which the thread keeps for later calls.

#include <utility>
#include <vector>

namespace trainkit::detail {

/// A vector of this thread. Nested datasets that use the same type get separate vectors.
template <class T>
class Scratch {
 public:
  Scratch() {
    if (kept().empty()) return;
    values_ = std::move(kept().back());
    kept().pop_back();
  }
  ~Scratch() { kept().push_back(std::move(values_)); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::vector<T>& operator*() { return values_; }
  std::vector<T>* operator->() { return &values_; }

 private:
  static std::vector<std::vector<T>>& kept() {
    thread_local std::vector<std::vector<T>> vectors;
    return vectors;
  }
  std::vector<T> values_;
};

}  // namespace trainkit::detail
