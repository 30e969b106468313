#pragma once
/// The operations that a function calls, LibTorch's and the library's.

#include <ATen/record_function.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace trainkit::test {

/// Names of the operations that f calls in this thread.
template <class F>
std::vector<std::string> operations_of(const F& f) {
  static std::vector<std::string> names;
  names.clear();
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function) {
                                                   names.emplace_back(function.name());
                                                   return std::unique_ptr<at::ObserverContext>();
                                                 }).scopes({at::RecordScope::FUNCTION}));
  f();
  at::removeCallback(handle);
  return names;
}

inline bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace trainkit::test
