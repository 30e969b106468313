#include "distributed/group/failure_detector.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace trainkit::detail {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPoll{5};
/// Time for which the host of the store stays available, so that the others can read the verdict or leave.
constexpr milliseconds kLinger{300};

/// Response time limit of a working store.
constexpr milliseconds kStorePatience{1000};

constexpr std::string_view kFinished = "it has finished";

}  // namespace

std::string rank_list(const std::vector<int64_t>& ranks, size_t at_most) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), at_most); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return ranks.size() > at_most ? text + ", ..." : text;
}

// Note [Failure detection]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// A failed collective shows which connection broke, not which rank caused it: a survivor that exits breaks connections
// too. The first rank that sees a failure therefore calls all others through the store:
//
//   call/<rank>      set by the asker; every rank has a thread that waits for this key
//   answers/<rank>   counter incremented by the answer, with the rank's position in position/<rank>
//   left/<rank>      reason of a rank that exits deliberately
//   verdict          result, written with compareSet: the first one wins and all survivors report it
//
// The answering thread is independent of the main thread. A rank that computes or waits in a collective thus answers
// within milliseconds; a rank that was killed or stopped does not answer and is reported as lost. If every rank
// answers, the verdict contains their positions: the slowest rank has not reached the collective.
//
// c10d waits without limit for the store, and rank 0, which usually hosts the store, may itself be stopped. Every
// request to the store therefore runs in a thread that can be abandoned (`run_with_timeout`), and such threads share
// ownership of State. `store_mutex` serialises the main client because a store client allows one thread at a time; the
// answering thread has its own clone. At exit rank 0 keeps the store for up to kLinger, until the other ranks have set
// gone/<rank>. If it leaves with a reason, they do not leave: it gives them its reason as the verdict and keeps the
// store until they have read it, for they notice the broken connection only after the store's end.

struct FailureDetector::State {
  State(c10::intrusive_ptr<c10d::Store> store_, int64_t rank_, int64_t world_size_)
      : store(std::move(store_)), rank(rank_), world_size(world_size_) {}

  void answer_until_stopped();
  void answer(c10d::Store& own_store, const std::string& call);
  std::string ask(milliseconds patience);
  void deregister(bool in_order);
  void announce_leave();
  std::string key(const char* name, int64_t of_rank) const { return std::string(name) + "/" + std::to_string(of_rank); }

  c10::intrusive_ptr<c10d::Store> store;  // client of the asking thread
  const int64_t rank;
  const int64_t world_size;
  mutable std::mutex mutex;
  std::string position;                // guarded by mutex
  std::optional<std::string> verdict;  // guarded by mutex
  std::mutex store_mutex;              // a store client allows one thread at a time
  std::atomic<bool> left = false;
  std::atomic<bool> stopping = false;
  std::atomic<bool> store_lost = false;
  std::promise<void> answered;  // set when the answering thread has ended
};

namespace {

/// Runs `work` in a new thread and returns its result, or nullopt after `limit`. The thread is then abandoned. See
/// Note [Failure detection].
template <class Work>
auto run_with_timeout(milliseconds limit, Work work) -> std::optional<decltype(work())> {
  auto task = std::make_shared<std::packaged_task<decltype(work())()>>(std::move(work));
  auto result = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  if (result.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return result.get();
}

}  // namespace

FailureDetector::FailureDetector(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t world_size)
    : state_(std::make_shared<State>(std::move(store), rank, world_size)) {
  std::thread([state = state_] {
    state->answer_until_stopped();
    state->answered.set_value();
  }).detach();
}

FailureDetector::~FailureDetector() {
  State& state = *state_;
  const bool in_order = !state.left;
  leave(kFinished);
  state.stopping = true;
  if (state.store_lost) return;
  const bool said = run_with_timeout(kLinger + kStorePatience, [state = state_, in_order] {
                      state->deregister(in_order);
                      return true;
                    }).has_value();
  if (!said || state.answered.get_future().wait_for(kStorePatience) != std::future_status::ready) return;
  try {
    if (state.rank != 0) state.store->set(state.key("gone", state.rank), std::string("gone"));
  } catch (...) {
  }
}

/// Ends the answering thread. The host of the store waits for ranks that are about to leave it.
void FailureDetector::State::deregister(bool in_order) {
  const std::lock_guard lock(store_mutex);
  try {
    store->set(key("call", rank), std::string("stop"));
    if (!in_order && rank == 0) announce_leave();
    // The store ends with rank 0, and other ranks may still be about to leave.
    const auto deadline = Clock::now() + kLinger;
    for (int64_t other = 1; in_order && rank == 0 && other < world_size; ++other) {
      while (!store->check({key("gone", other)}) && Clock::now() < deadline) std::this_thread::sleep_for(kPoll);
    }
  } catch (...) {  // the store is gone, which also ends the thread's wait
  }
}

/// Gives the other ranks the reason why rank 0, which holds the store, leaves. An earlier verdict stays.
void FailureDetector::State::announce_leave() {
  store->compareSet("verdict", std::string(), "rank 0 left: " + store->get_to_str(key("left", 0)));
  for (int64_t other = 1; other < world_size; ++other) store->set(key("call", other), std::string("answer"));
  const auto deadline = Clock::now() + kLinger;
  while (store->add("verdict_seen", 0) < world_size - 1 && Clock::now() < deadline) std::this_thread::sleep_for(kPoll);
}

void FailureDetector::set_position(std::string position) {
  const std::lock_guard lock(state_->mutex);
  state_->position = std::move(position);
}

std::string FailureDetector::position() const {
  const std::lock_guard lock(state_->mutex);
  return state_->position;
}

bool FailureDetector::has_verdict() const {
  const std::lock_guard lock(state_->mutex);
  return state_->verdict.has_value();
}

bool FailureDetector::has_left() const { return state_->left; }

void FailureDetector::leave(std::string_view reason) {
  State& state = *state_;
  if (state.left.exchange(true) || state.store_lost) return;
  const std::lock_guard lock(state.store_mutex);
  try {
    state.store->set(state.key("left", state.rank), std::string(reason));
  } catch (...) {  // the store is gone: no rank can read it
  }
}

void FailureDetector::State::answer_until_stopped() {
  const std::string call = key("call", rank);
  try {
    const c10::intrusive_ptr<c10d::Store> own_store = store->clone();
    while (!stopping) {
      try {
        own_store->wait({call}, std::chrono::hours(24));
      } catch (const c10::DistStoreError&) {
        continue;  // timeout of one day
      }
      if (!stopping) answer(*own_store, call);
    }
  } catch (...) {  // the store is gone: verdict() reports it
  }
}

/// Answers all calls of the next two seconds and reads the verdict of the asking rank.
void FailureDetector::State::answer(c10d::Store& own_store, const std::string& call) {
  const auto deadline = Clock::now() + std::chrono::seconds(2);
  while (!stopping && Clock::now() < deadline) {
    if (own_store.check({call})) {
      own_store.deleteKey(call);
      own_store.set(key("position", rank), [&] {
        const std::lock_guard lock(mutex);
        return position;
      }());
      own_store.add(key("answers", rank), 1);
    }
    if (own_store.check({"verdict"})) {
      std::string found = own_store.get_to_str("verdict");
      {
        const std::lock_guard lock(mutex);
        verdict = std::move(found);
      }
      own_store.add("verdict_seen", 1);  // the store may end now
      return;
    }
    std::this_thread::sleep_for(kPoll);
  }
}

std::string FailureDetector::verdict(milliseconds patience) {
  State& state = *state_;
  const auto known = [&] {
    const std::lock_guard lock(state.mutex);
    return state.verdict;
  };
  if (const auto found = known()) return *found;
  const auto asked = run_with_timeout(patience + kLinger + kStorePatience, [state = state_, patience]() -> std::string {
    const std::lock_guard lock(state->store_mutex);
    try {
      return state->ask(patience);
    } catch (...) {
      return {};  // the store is gone
    }
  });
  if (asked && !asked->empty()) return *asked;
  if (!asked) state.store_lost = true;
  // Another rank's verdict may have arrived during the request.
  if (const auto found = known()) return *found;
  return state.rank == 0 ? "the store failed" : "rank 0 lost (it holds the store)";
}

std::string FailureDetector::State::ask(milliseconds patience) {
  std::vector<int64_t> silent;
  std::vector<int64_t> before(static_cast<size_t>(world_size));
  for (int64_t other = 0; other < world_size; ++other) {
    if (other == rank) continue;
    before[static_cast<size_t>(other)] = store->add(key("answers", other), 0);
    store->set(key("call", other), std::string("answer"));
    silent.push_back(other);
  }
  const auto deadline = Clock::now() + patience;
  std::vector<std::string> gone;
  while (!silent.empty()) {
    std::erase_if(silent, [&](int64_t other) {
      if (store->check({key("left", other)})) {
        gone.push_back("rank " + std::to_string(other) + " left: " + store->get_to_str(key("left", other)));
        return true;
      }
      return store->add(key("answers", other), 0) > before[static_cast<size_t>(other)];
    });
    if (silent.empty() || Clock::now() >= deadline) break;
    if (store->check({"verdict"})) return store->get_to_str("verdict");
    std::this_thread::sleep_for(kPoll);
  }
  std::string found;
  if (!silent.empty()) {
    found = rank_list(silent) + " lost";
  } else if (!gone.empty()) {
    found = gone.front();
  } else {
    // All ranks answer: one of them has not reached the collective yet.
    for (int64_t other = 0; other < world_size; ++other) {
      if (other == rank) continue;
      found += (found.empty() ? "" : "; ") + std::string("rank ") + std::to_string(other) + " is at " +
               store->get_to_str(key("position", other));
    }
  }
  // The first verdict is kept; later askers report the same one.
  found = store->compareSet("verdict", std::string(), found);
  const int64_t readers = world_size - 1 - static_cast<int64_t>(silent.size() + gone.size());
  const auto linger = Clock::now() + kLinger;
  while (rank == 0 && Clock::now() < linger && store->add("verdict_seen", 0) < readers) {
    std::this_thread::sleep_for(kPoll);
  }
  return found;
}

}  // namespace trainkit::detail
