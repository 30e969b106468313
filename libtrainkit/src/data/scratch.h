#pragma once
/// Memory for the length of a call, kept by the thread from call to call.

#include <utility>
#include <vector>

namespace trainkit::detail {

/// A vector of the thread's own, also where a dataset inside a dataset needs one of the same type.
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
