#include "kernels_block.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "sim.h"

namespace cuda_sim {
namespace {

using on_host::place;
using on_host::WarpOperation;

const char* name_of(WarpOperation operation) {
  switch (operation) {
    case WarpOperation::kShuffle:
      return "__shfl_sync";
    case WarpOperation::kShuffleXor:
      return "__shfl_xor_sync";
    case WarpOperation::kShuffleUp:
      return "__shfl_up_sync";
    case WarpOperation::kShuffleDown:
      return "__shfl_down_sync";
    case WarpOperation::kBallot:
      return "__ballot_sync";
    case WarpOperation::kSync:
      return "__syncwarp";
  }
  return "?";
}

/// Thrown to leave a kernel.
struct Stop {};

bool is_shuffle(WarpOperation operation) { return operation < WarpOperation::kBallot; }

std::string text_of(uint3 index) {
  return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " + std::to_string(index.z) + ")";
}

std::string text_of(WarpOperation operation, unsigned mask) {
  char text[64];
  snprintf(text, sizeof text, "%s with mask 0x%08x", name_of(operation), mask);
  return text;
}

}  // namespace

Order::Order(const std::string& name) {
  const std::string kind = setting("THREAD_ORDER", "forward");
  kind_ = kind == "reverse" ? Kind::kReverse : kind == "random" ? Kind::kRandom : Kind::kForward;
  if (kind_ != Kind::kRandom) return;
  const auto seed = static_cast<uint64_t>(setting("SEED", 0L)) ^ std::hash<std::string>()(name);
  std::seed_seq both{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  random_.seed(both);
}

void Order::fill(std::vector<unsigned>& order, size_t count) {
  order.resize(count);
  std::iota(order.begin(), order.end(), 0u);
  if (kind_ == Kind::kReverse) std::reverse(order.begin(), order.end());
  if (kind_ == Kind::kRandom) std::shuffle(order.begin(), order.end(), random_);
}

BlockRunner& BlockRunner::instance() {
  thread_local BlockRunner runner;
  return runner;
}

void BlockRunner::begin_block(Order& order) {
  const dim3& dim = place.block_dim;
  const size_t count = size_t{dim.x} * dim.y * dim.z;
  order.fill(order_, count);
  threads_.resize(count);
  warps_.resize((count + kWarp - 1) / kWarp);
  for (Warp& warp : warps_) {
    warp.alive = warp.waiting = 0;
    warp.threads.clear();
  }
  for (const unsigned id : order_) {
    Thread& thread = threads_[id];
    thread.id = id;
    thread.state = State::kReady;
    thread.fiber = nullptr;
    thread.index = {id % dim.x, id / dim.x % dim.y, id / dim.x / dim.y};
    warps_[id / kWarp].alive |= 1u << id % kWarp;
    warps_[id / kWarp].threads.push_back(&thread);
  }
  ready_.clear();
  next_ = next_ready_ = at_barrier_ = 0;
  alive_ = count;
  failure_.reset();
}

const Failure* BlockRunner::run(Order& order, const std::function<void()>& body) {
  body_ = &body;
  begin_block(order);
  while (!failure_ && alive_ > 0) {
    if (next_ < order_.size()) {
      enter(idle_fiber());
    } else if (next_ready_ < ready_.size()) {
      resume(*ready_[next_ready_++]);
    } else if (!release()) {
      record(cudaErrorLaunchTimeout, "kernel", "deadlocks: " + deadlock(), nullptr);
    }
  }
  end_block();
  return failure_.get();
}

Fiber& BlockRunner::idle_fiber() {
  if (idle_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>([this](Fiber& fiber) { work(fiber); }));
    idle_.push_back(fibers_.back().get());
  }
  Fiber& fiber = *idle_.back();
  idle_.pop_back();
  return fiber;
}

/// Work of a fibre: runs the next threads of the block, one after the other.
void BlockRunner::work(Fiber& fiber) {
  while (true) {
    while (next_ < order_.size()) {
      Thread& thread = threads_[order_[next_++]];
      thread.fiber = &fiber;
      current_ = &thread;
      place.thread = thread.index;
      try {
        (*body_)();
      } catch (const Stop&) {
      }
      if (failure_) break;
      thread.state = State::kExited;
      --alive_;
      warps_[thread.id / kWarp].alive &= ~(1u << thread.id % kWarp);
    }
    idle_.push_back(&fiber);
    fiber.leave();
  }
}

void BlockRunner::resume(Thread& thread) {
  current_ = &thread;
  place.thread = thread.index;
  enter(*thread.fiber);
}

void BlockRunner::enter(Fiber& fiber) {
  running_ = &fiber;
  fiber.enter();
  running_ = nullptr;
}

/// Removes the fibres of threads that did not exit.
void BlockRunner::end_block() {
  if (!failure_) return;
  idle_.clear();
  for (const auto& fiber : fibers_) {
    fiber->reset();
    idle_.push_back(fiber.get());
  }
}

void BlockRunner::wait(State state) {
  current_->state = state;
  current_->fiber->leave();
}

void BlockRunner::sync_block() {
  ++at_barrier_;
  wait(State::kAtBarrier);
}

/// Wakes threads when no other can run. Returns false if none may continue.
bool BlockRunner::release() {
  current_ = nullptr;
  return release_barrier() || release_warps();
}

bool BlockRunner::release_barrier() {
  if (at_barrier_ < alive_) return false;
  ready_.clear();
  next_ready_ = at_barrier_ = 0;
  for (const unsigned id : order_) {
    Thread& thread = threads_[id];
    if (thread.state != State::kAtBarrier) continue;
    thread.state = State::kReady;
    ready_.push_back(&thread);
  }
  return true;
}

bool BlockRunner::release_warps() {
  bool any = false;
  for (Warp& warp : warps_) {
    for (const Thread* thread : warp.threads) {
      if (thread->state != State::kAtWarp || !is_complete(warp, thread->mask, thread->operation)) continue;
      complete(warp, thread->mask);
      any = true;
    }
  }
  return any;
}

bool BlockRunner::is_complete(const Warp& warp, unsigned mask, WarpOperation operation) const {
  if (mask & warp.alive & ~warp.waiting) return false;
  return std::all_of(warp.threads.begin(), warp.threads.end(), [&](const Thread* thread) {
    const bool is_named = (mask & warp.alive) >> thread->id % kWarp & 1;
    return !is_named || (thread->mask == mask && thread->operation == operation);
  });
}

/// Returns whether the lane that a waiting thread reads takes part.
bool BlockRunner::is_source(const Warp& warp, const Thread& thread) const {
  return thread.source < kWarp && (thread.mask & warp.alive) >> thread.source & 1;
}

/// Gives each lane its result and lets it continue.
void BlockRunner::complete(Warp& warp, unsigned mask) {
  uint64_t given[kWarp] = {}, ballot = 0;
  const unsigned lanes = mask & warp.alive;
  for (const Thread* thread : warp.threads) {
    const unsigned lane = thread->id % kWarp;
    given[lane] = thread->bits;
    if (lanes >> lane & 1) ballot |= thread->bits << lane;
  }
  warp.waiting &= ~lanes;
  if (next_ready_ == ready_.size()) {
    ready_.clear();
    next_ready_ = 0;
  }
  for (Thread* thread : warp.threads) {
    if (!(lanes >> thread->id % kWarp & 1)) continue;
    if (!is_shuffle(thread->operation)) {
      thread->bits = ballot;
    } else if (is_source(warp, *thread)) {
      thread->bits = given[thread->source];
    } else {
      record(cudaErrorLaunchFailure, "kernel",
             "calls " + text_of(thread->operation, mask) + " and reads lane " + std::to_string(thread->source) +
                 ", which does not take part",
             thread);
    }
    thread->state = State::kReady;
    if (thread != current_) ready_.push_back(thread);
  }
}

uint64_t BlockRunner::exchange(WarpOperation operation, unsigned mask, uint64_t bits, unsigned source) {
  Thread& me = *current_;
  Warp& warp = warps_[me.id / kWarp];
  if (!(mask >> me.id % kWarp & 1)) {
    fail(cudaErrorLaunchFailure, "kernel",
         "calls " + text_of(operation, mask) + " in a lane that the mask does not name");
  }
  me.operation = operation;
  me.mask = mask;
  me.bits = bits;
  me.source = source;
  warp.waiting |= 1u << me.id % kWarp;
  if (!is_complete(warp, mask, operation)) {
    wait(State::kAtWarp);
    return me.bits;
  }
  complete(warp, mask);
  if (failure_) throw Stop();
  return me.bits;
}

void BlockRunner::record(cudaError_t error, const std::string& kind, const std::string& text, const Thread* thread) {
  if (failure_) return;
  const std::string where = thread ? " in thread " + text_of(thread->index) + " of" : " in";
  failure_ = std::make_unique<Failure>(Failure{error, kind, text + "," + where + " block " + text_of(place.block)});
}

void BlockRunner::fail(cudaError_t error, const std::string& kind, const std::string& text) {
  record(error, kind, text, current_);
  throw Stop();
}

/// Counts of waiting threads by reason.
std::string BlockRunner::deadlock() const {
  std::string text;
  const auto add = [&](const Thread& first, size_t count, const std::string& what) {
    text +=
        (text.empty() ? "" : "; ") + std::to_string(count) + " threads from " + text_of(first.index) + " at " + what;
  };
  std::vector<const Thread*> told;
  for (const Thread& thread : threads_) {
    if (thread.state == State::kExited) continue;
    const auto is_alike = [&](const Thread& other) {
      return other.state == thread.state &&
             (thread.state == State::kAtBarrier || (other.operation == thread.operation && other.mask == thread.mask &&
                                                    other.id / kWarp == thread.id / kWarp));
    };
    if (std::any_of(told.begin(), told.end(), [&](const Thread* other) { return is_alike(*other); })) continue;
    told.push_back(&thread);
    const auto count = static_cast<size_t>(std::count_if(threads_.begin(), threads_.end(), is_alike));
    add(thread, count, thread.state == State::kAtBarrier ? "__syncthreads" : text_of(thread.operation, thread.mask));
  }
  const auto exited = threads_.size() - alive_;
  return text + (exited ? "; " + std::to_string(exited) + " exited" : "");
}

namespace on_host {

constinit thread_local Place place{};

void sync_block() { BlockRunner::instance().sync_block(); }
unsigned lane() { return BlockRunner::instance().lane(); }
void trap() { BlockRunner::instance().fail(cudaErrorLaunchFailure, "kernel", "calls __trap"); }
uint64_t exchange(WarpOperation operation, unsigned mask, uint64_t bits, unsigned source) {
  return BlockRunner::instance().exchange(operation, mask, bits, source);
}

}  // namespace on_host
}  // namespace cuda_sim
