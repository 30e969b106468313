#pragma once
// Gives the losses of players the tensors that a step computed once for all of them.

#include "trainkit/train/loss.h"

namespace trainkit::detail {

/// Makes current_shared() of this thread return `shared`, or nothing for null, during its lifetime.
class SharedScope {
 public:
  explicit SharedScope(const Shared* shared);
  ~SharedScope();
  SharedScope(const SharedScope&) = delete;
  SharedScope& operator=(const SharedScope&) = delete;

 private:
  const Shared* before_;
};

}  // namespace trainkit::detail
