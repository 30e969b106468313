#pragma once
/// Leaves out the arithmetic of a step whose values nobody reads, for memory planning: a step of GPT-2 on the CPU takes
/// minutes, its allocations milliseconds.

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace trainkit::detail {

/// In this thread, matrix products, convolutions, attention and random initial weights on the CPU allocate their
/// results, fill them with zeros and compute nothing; so do their gradients. Nests.
class SkippedProducts {
 public:
  /// Does nothing unless `on`.
  explicit SkippedProducts(bool on);
  SkippedProducts(const SkippedProducts&) = delete;
  SkippedProducts& operator=(const SkippedProducts&) = delete;

  static bool active();

 private:
  std::optional<c10::impl::IncludeDispatchKeyGuard> guard_;
};

}  // namespace trainkit::detail
