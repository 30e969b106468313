// How a rank waits for others, and its report if they do not arrive.
#include <chrono>
#include <cstdio>

#include "nccl_comm.h"
#include "sim.h"

namespace cuda_sim::nccl {

bool Comm::wait(const Call& call, const std::function<std::vector<int>()>& missing) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kProcessCheck = std::chrono::milliseconds(50);
  const Clock::time_point start = Clock::now();
  const long seconds = setting("NCCL_TIMEOUT", 120L);
  Clock::time_point next_check = start + kProcessCheck;
  for (;;) {
    const uint32_t seen = clique_->segment().changes;
    const std::vector<int> ranks = missing();
    if (stopped()) return false;
    if (ranks.empty()) return true;
    if (const std::string text = clique_->broken(); !text.empty()) {
      end_broken(text);
      return false;
    }
    const Clock::time_point now = Clock::now();
    const bool checks_processes = now >= next_check;
    if (checks_processes) next_check = now + kProcessCheck;
    const std::string never = why_never(ranks, checks_processes);
    // A rank may have finished its part and left.
    if (!never.empty() && !missing().empty()) {
      fail_remotely(never + "; rank " + std::to_string(rank_) + " waits for it in " + describe(call));
      return false;
    }
    if (now > start + std::chrono::seconds(seconds)) {
      const std::string text = who_is_late(ranks, call, seconds);
      finding("nccl", text);
      fail(ncclRemoteError, text);
      return false;
    }
    clique_->sleep(seen);
  }
}

std::string Comm::name_of_rank(int rank) {
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(clique_->slot(rank).pid) + ")";
}

std::string Comm::why_never(const std::vector<int>& ranks, bool checks_processes) {
  for (int rank : ranks) {
    switch (clique_->slot(rank).state) {
      case State::kAborted:
        return name_of_rank(rank) + " aborted its communicator";
      case State::kFailed:
        return name_of_rank(rank) + " stopped with an error";
      case State::kDestroyed:
        return name_of_rank(rank) + " destroyed its communicator";
      default:
        if (checks_processes && clique_->is_gone(rank)) return "the process of " + name_of_rank(rank) + " has ended";
    }
  }
  return "";
}

std::string Comm::who_is_late(const std::vector<int>& ranks, const Call& call, long seconds) {
  std::string text = "rank " + std::to_string(rank_) + " waited " + std::to_string(seconds) + " s in " + describe(call);
  if (call.op >= Op::kAllReduce && call.op < Op::kSend)
    text += ", call " + std::to_string(clique_->slot(rank_).calls) + " of the communicator,";
  text += " for ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int rank = ranks[i];
    if (i > 0) text += " and ";
    if (clique_->slot(rank).state == State::kAbsent) {
      text += "rank " + std::to_string(rank) + ", which has not joined";
      continue;
    }
    const Call other = clique_->now(rank);
    const std::string calls = std::to_string(clique_->slot(rank).calls);
    text += name_of_rank(rank) + (other.op == Op::kNone ? ", which has finished " + calls + " collectives"
                                                        : ", which is in " + describe(other));
  }
  return text;
}

void Comm::break_with(const std::string& text) {
  clique_->set_broken(text);
  const std::string first = clique_->broken();
  end_broken(first.empty() ? text : first);
}

void Comm::end_broken(const std::string& text) {
  if (clique_->first_to_report()) finding("nccl", text);
  fail(ncclInvalidUsage, text);
}

void Comm::fail_remotely(const std::string& text) {
  std::fprintf(stderr, "cuda_sim: nccl: %s\n", text.c_str());
  fail(ncclRemoteError, text);
}

void Comm::fail(ncclResult_t code, const std::string& text) {
  ncclResult_t none = ncclSuccess;
  if (!error_.compare_exchange_strong(none, code)) return;
  set_last_error(text);
  State present = State::kPresent;
  clique_->slot(rank_).state.compare_exchange_strong(present, State::kFailed);
  clique_->wake();
  std::lock_guard lock(turn_);
  turn_changed_.notify_all();
}

}  // namespace cuda_sim::nccl
