#include "nccl_comm.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "sim.h"

namespace cuda_sim::nccl {

namespace {

struct Comms {
  std::mutex mutex;
  std::map<ncclComm_t, std::shared_ptr<Comm>> by_handle;
};

Comms& comms() {
  static Comms& all = *new Comms;
  return all;
}

struct LastError {
  std::mutex mutex;
  std::set<std::string> texts;  // never erased: callers keep pointers to them
  const char* last = "";
};

LastError& last_error_state() {
  static LastError& state = *new LastError;
  return state;
}

}  // namespace

void set_last_error(const std::string& text) {
  LastError& state = last_error_state();
  std::lock_guard lock(state.mutex);
  state.last = state.texts.insert(text).first->c_str();
}

const char* last_error() {
  LastError& state = last_error_state();
  std::lock_guard lock(state.mutex);
  return state.last;
}

std::shared_ptr<Comm> Comm::join(const std::string& name, int ranks, int rank, std::string* error) {
  std::shared_ptr<Clique> clique = Clique::open(name, ranks, error);
  if (!clique) return nullptr;
  const int device = current_device();
  *error = clique->join(rank, device);
  if (!error->empty()) return nullptr;
  auto comm = std::make_shared<Comm>(std::move(clique), ranks, rank, device);
  std::lock_guard lock(comms().mutex);
  comms().by_handle[comm->handle()] = comm;
  return comm;
}

std::shared_ptr<Comm> Comm::find(ncclComm_t handle) {
  std::lock_guard lock(comms().mutex);
  const auto found = comms().by_handle.find(handle);
  return found == comms().by_handle.end() ? nullptr : found->second;
}

Comm::Comm(std::shared_ptr<Clique> clique, int ranks, int rank, int device)
    : clique_(std::move(clique)), ranks_(ranks), rank_(rank), device_(device) {}

ncclResult_t Comm::wait_for_ranks() {
  const Call call{.op = Op::kInit};
  const bool complete = wait(call, [this] {
    std::vector<int> absent;
    for (int rank = 0; rank < ranks_; ++rank)
      if (clique_->slot(rank).state == State::kAbsent) absent.push_back(rank);
    return absent;
  });
  if (!complete) {
    clique_->remove_name();
    return error_;
  }
  if (const std::string text = clique_->shared_device(); !text.empty()) break_with(text);
  return error_;
}

/// NCCL clears the runtime's error of a call that failed.
static ncclResult_t cuda_failed() {
  (void)cudaGetLastError();
  return ncclUnhandledCudaError;
}

ncclResult_t Comm::enqueue(cudaStream_t stream, std::vector<Work> works, std::function<void()> run_instead) {
  std::vector<Access> accesses;
  for (const Work& work : works) {
    const Buffers need = buffers_of(work.call, rank_, ranks_);
    if (need.sends) accesses.push_back({work.send, need.send_bytes, false});
    const bool has_it = work.call.op == Op::kBroadcast && need.sends && work.send == work.recv;
    if (need.receives && !has_it) accesses.push_back({work.recv, need.recv_bytes, true});
    if (work.factor && work.factor->address)
      accesses.push_back({work.factor->address, type_bytes(work.call.datatype), false});
  }
  const std::string name = std::string("nccl") + name_of(works[0].call.op);
  const auto self = find(handle());
  if (!self) return ncclInvalidArgument;

  const auto count = [](const std::vector<Work>& counted) {
    for (const Work& work : counted) count_nccl_call(work.call.count * type_bytes(work.call.datatype));
  };
  std::lock_guard lock(issue_);
  if (is_capturing(stream)) {  // each replay is a call
    const auto run_node = [self, count, works = std::move(works), run_instead = std::move(run_instead)] {
      count(works);
      run_instead ? run_instead() : self->run(works, std::nullopt);
    };
    return cuda_sim::enqueue(stream, name, accesses, run_node) == cudaSuccess ? ncclSuccess : cuda_failed();
  }
  count(works);
  {
    std::lock_guard turn(turn_);
    ++pending_;
  }
  const auto run_now = [self, works = std::move(works), ticket = next_ticket_] { self->run(works, ticket); };
  if (cuda_sim::enqueue(stream, name, accesses, run_now) == cudaSuccess) {
    ++next_ticket_;
    return ncclSuccess;
  }
  std::lock_guard turn(turn_);
  --pending_;
  return cuda_failed();
}

void Comm::run(const std::vector<Work>& works, std::optional<uint64_t> ticket) {
  const Call& call = works[0].call;
  if (destroyed_ && !stopped())
    finding("nccl", "rank " + std::to_string(rank_) + ": a CUDA graph runs " + describe(call) +
                        " on a communicator that ncclCommDestroy has freed");
  const bool runs = !destroyed_ && take_turn(ticket, call);
  if (runs) {
    clique_->set_now(rank_, call);
    call.op == Op::kSend || call.op == Op::kRecv ? exchange_messages(works) : exchange(works[0]);
    clique_->set_now(rank_, Call{});
  }
  std::lock_guard lock(turn_);
  if (runs) running_ = false;
  if (ticket) --pending_;
  if (ticket) ++serving_;
  turn_changed_.notify_all();
}

bool Comm::take_turn(std::optional<uint64_t> ticket, const Call& call) {
  const long seconds = setting("NCCL_TIMEOUT", 120L);
  std::unique_lock lock(turn_);
  const bool mine = turn_changed_.wait_for(lock, std::chrono::seconds(2 * seconds), [&] {
    return stopped() || (!running_ && (!ticket || *ticket == serving_));
  });
  if (mine && !stopped()) return running_ = true;
  lock.unlock();
  if (!mine) {
    const std::string text = "rank " + std::to_string(rank_) + " waited " + std::to_string(2 * seconds) + " s in " +
                             describe(call) + " for an earlier call on another stream of this rank";
    finding("nccl", text);
    fail(ncclInvalidUsage, text);
  }
  return false;
}

ncclResult_t Comm::finalize() {
  finalized_ = true;
  std::unique_lock lock(turn_);
  turn_changed_.wait(lock, [&] { return pending_ == 0 || stopped(); });
  return error_;
}

void Comm::destroy() {
  finalize();
  destroyed_ = true;
  State present = State::kPresent;
  clique_->slot(rank_).state.compare_exchange_strong(present, State::kDestroyed);
  clique_->wake();
  std::lock_guard lock(comms().mutex);
  comms().by_handle.erase(handle());
}

void Comm::abort() {
  ncclResult_t none = ncclSuccess;
  error_.compare_exchange_strong(none, ncclInvalidUsage);
  State present = State::kPresent;
  clique_->slot(rank_).state.compare_exchange_strong(present, State::kAborted);
  clique_->wake();
  {
    std::unique_lock lock(turn_);
    turn_changed_.notify_all();
    turn_changed_.wait(lock, [&] { return !running_; });  // afterwards nothing writes to the caller's memory
  }
  std::lock_guard lock(comms().mutex);
  comms().by_handle.erase(handle());
}

uint64_t Comm::start_split(int color, int key) {
  Slot& slot = clique_->slot(rank_);
  const uint64_t number = slot.splits + 1;
  slot.split[number % kSplits] = {color, key};
  slot.splits = number;
  clique_->wake();
  return number;
}

ncclResult_t Comm::finish_split(uint64_t number, int color, std::shared_ptr<Comm>* part) {
  const bool complete = wait(Call{.op = Op::kSplit}, [&] {
    std::vector<int> late;
    for (int rank = 0; rank < ranks_; ++rank)
      if (clique_->slot(rank).splits < number) late.push_back(rank);
    return late;
  });
  if (!complete || color == NCCL_SPLIT_NOCOLOR) return error_;
  std::vector<std::pair<int, int>> members;  // key and rank
  for (int rank = 0; rank < ranks_; ++rank) {
    const auto& split = clique_->slot(rank).split[number % kSplits];
    if (split.color == color) members.emplace_back(split.key, rank);
  }
  std::sort(members.begin(), members.end());
  const auto self =
      std::find_if(members.begin(), members.end(), [&](const auto& member) { return member.second == rank_; });
  const std::string name = clique_->name() + "_" + std::to_string(number) + "_" + std::to_string(color);
  std::string error;
  *part = join(name, static_cast<int>(members.size()), static_cast<int>(self - members.begin()), &error);
  if (*part) return ncclSuccess;
  fail(ncclSystemError, error);
  return ncclSystemError;
}

int Comm::add_factor(const Factor& factor) {
  std::lock_guard lock(factors_mutex_);
  factors_.push_back(factor);
  return kPreMulSum + static_cast<int>(factors_.size()) - 1;
}

bool Comm::remove_factor(int redop) {
  std::lock_guard lock(factors_mutex_);
  const size_t index = static_cast<size_t>(redop - kPreMulSum);
  if (redop < kPreMulSum || index >= factors_.size() || !factors_[index]) return false;
  factors_[index].reset();
  return true;
}

std::optional<Factor> Comm::factor(int redop) {
  std::lock_guard lock(factors_mutex_);
  const size_t index = static_cast<size_t>(redop - kPreMulSum);
  return redop < kPreMulSum || index >= factors_.size() ? std::nullopt : factors_[index];
}

}  // namespace cuda_sim::nccl
