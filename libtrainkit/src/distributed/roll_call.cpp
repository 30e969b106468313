#include "distributed/roll_call.h"

#include <algorithm>
#include <utility>

namespace trainkit::detail {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPoll{5};
/// How long the host of the store stays for the others: to read the verdict, or to leave.
constexpr milliseconds kLinger{300};

constexpr std::string_view kFinished = "it has finished";

std::string rank_list(const std::vector<int64_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

}  // namespace

RollCall::RollCall(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t world_size)
    : store_(std::move(store)), rank_(rank), world_size_(world_size) {
  thread_ = std::thread([this] { answer_until_stopped(); });
}

RollCall::~RollCall() {
  const bool in_order = !left_;
  leave(kFinished);
  stopping_ = true;
  try {
    const std::lock_guard lock(store_mutex_);
    store_->set(key("call", rank_), std::string("stop"));
    // The store goes with rank 0, and others may still be about to leave.
    const auto deadline = Clock::now() + kLinger;
    for (int64_t rank = 1; in_order && rank_ == 0 && rank < world_size_; ++rank) {
      while (!store_->check({key("gone", rank)}) && Clock::now() < deadline) std::this_thread::sleep_for(kPoll);
    }
  } catch (...) {  // the store is gone, and with it the thread's wait
  }
  thread_.join();
  try {
    if (rank_ != 0) store_->set(key("gone", rank_), std::string("gone"));
  } catch (...) {
  }
}

void RollCall::set_position(std::string position) {
  const std::lock_guard lock(mutex_);
  position_ = std::move(position);
}

std::string RollCall::position() const {
  const std::lock_guard lock(mutex_);
  return position_;
}

void RollCall::leave(std::string_view reason) {
  const std::lock_guard lock(store_mutex_);
  if (left_.exchange(true)) return;
  try {
    store_->set(key("left", rank_), std::string(reason));
  } catch (...) {  // the store is gone: nobody is there to read it
  }
}

void RollCall::answer_until_stopped() {
  const std::string call = key("call", rank_);
  try {
    const c10::intrusive_ptr<c10d::Store> store = store_->clone();
    while (!stopping_) {
      try {
        store->wait({call}, std::chrono::hours(24));
      } catch (const c10::DistStoreError&) {
        continue;  // a day has passed
      }
      if (!stopping_) answer(*store, call);
    }
  } catch (...) {  // the store is gone: verdict() says so
  }
}

/// Answers all who call in the next moments, and learns what they found.
void RollCall::answer(c10d::Store& store, const std::string& call) {
  const auto deadline = Clock::now() + std::chrono::seconds(2);
  while (!stopping_ && Clock::now() < deadline) {
    if (store.check({call})) {
      store.deleteKey(call);
      store.set(key("position", rank_), position());
      store.add(key("answers", rank_), 1);
    }
    if (store.check({"verdict"})) {
      std::string found = store.get_to_str("verdict");
      store.add("verdict_seen", 1);
      const std::lock_guard lock(mutex_);
      verdict_ = std::move(found);
      return;
    }
    std::this_thread::sleep_for(kPoll);
  }
}

std::string RollCall::verdict(milliseconds patience) {
  {
    const std::lock_guard lock(mutex_);
    if (verdict_) return *verdict_;
  }
  const std::lock_guard lock(store_mutex_);
  try {
    return ask(patience);
  } catch (...) {
    // Another rank's verdict may have come while this one was asking.
    const std::lock_guard verdict_lock(mutex_);
    if (verdict_) return *verdict_;
    return rank_ == 0 ? "the store failed" : "rank 0 lost (it holds the store)";
  }
}

std::string RollCall::ask(milliseconds patience) {
  std::vector<int64_t> silent;
  std::vector<int64_t> before(static_cast<size_t>(world_size_));
  for (int64_t rank = 0; rank < world_size_; ++rank) {
    if (rank == rank_) continue;
    before[static_cast<size_t>(rank)] = store_->add(key("answers", rank), 0);
    store_->set(key("call", rank), std::string("answer"));
    silent.push_back(rank);
  }
  const auto deadline = Clock::now() + patience;
  std::vector<std::string> left;
  while (!silent.empty()) {
    std::erase_if(silent, [&](int64_t rank) {
      if (store_->check({key("left", rank)})) {
        left.push_back("rank " + std::to_string(rank) + " left: " + store_->get_to_str(key("left", rank)));
        return true;
      }
      return store_->add(key("answers", rank), 0) > before[static_cast<size_t>(rank)];
    });
    if (silent.empty() || Clock::now() >= deadline) break;
    if (store_->check({"verdict"})) return store_->get_to_str("verdict");
    std::this_thread::sleep_for(kPoll);
  }
  std::string found;
  if (!silent.empty()) {
    found = rank_list(silent) + " lost";
  } else if (!left.empty()) {
    found = left.front();
  } else {
    // All live: the one that is behind has not arrived.
    for (int64_t rank = 0; rank < world_size_; ++rank) {
      if (rank == rank_) continue;
      found += (found.empty() ? "" : "; ") + std::string("rank ") + std::to_string(rank) + " is at " +
               store_->get_to_str(key("position", rank));
    }
  }
  // The first verdict stands; those who ask later report the same.
  found = store_->compareSet("verdict", std::string(), found);
  const int64_t readers = world_size_ - 1 - static_cast<int64_t>(silent.size() + left.size());
  const auto linger = Clock::now() + kLinger;
  while (rank_ == 0 && Clock::now() < linger && store_->add("verdict_seen", 0) < readers) {
    std::this_thread::sleep_for(kPoll);
  }
  return found;
}

}  // namespace trainkit::detail
