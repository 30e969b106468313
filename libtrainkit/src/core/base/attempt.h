#pragma once
#include <absl/status/status.h>

#include "trainkit/core/status.h"

namespace trainkit::detail {

/// Returns what function() returns, or the status of its exception.
template <typename Function>
absl::Status attempt(Function&& function) {
  try {
    return function();
  } catch (...) {
    return status_from_current_exception();
  }
}

}  // namespace trainkit::detail
