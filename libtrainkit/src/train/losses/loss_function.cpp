#include <atomic>

#include "train/losses/shared_scope.h"
#include "trainkit/train/loss.h"

namespace trainkit {

uint64_t LossFunction::next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

std::vector<const LossFunction*> LossFunction::for_replicas(int64_t count) const {
  while (std::ssize(copies_) + 1 < count) copies_.push_back(*this);
  std::vector<const LossFunction*> functions{this};
  for (int64_t i = 1; i < count; ++i) functions.push_back(&copies_[static_cast<size_t>(i - 1)]);
  return functions;
}

namespace detail {
namespace {
thread_local const Shared* shared_now = nullptr;
}  // namespace

SharedScope::SharedScope(const Shared* shared) : before_(std::exchange(shared_now, shared)) {}
SharedScope::~SharedScope() { shared_now = before_; }

const Shared& current_shared() {
  static const Shared kNone;
  return shared_now ? *shared_now : kNone;
}

}  // namespace detail
}  // namespace trainkit
