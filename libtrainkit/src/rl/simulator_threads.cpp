#include "rl/simulator_threads.h"

#include <ATen/Parallel.h>
#include <pthread.h>

#include <algorithm>

#include "core/machine/block_signals.h"

namespace trainkit::detail {

SimulatorThreads::SimulatorThreads(int64_t threads, int64_t count)
    : count_(count), each_(std::max<int64_t>(1, count / (threads * 8))), state_(static_cast<uint64_t>(count)) {
  if (threads == 1) return;
  const int num_threads = at::get_num_threads();
  const BlockSignals no_handlers;
  for (int64_t i = 1; i < threads; ++i) threads_.emplace_back([this] { serve(); });
  for (int64_t started = 0; started < threads - 1; started = started_) started_.wait(started);
  // at::set_num_threads() in a thread also sets the number with which later threads start.
  at::set_num_threads(num_threads);
}

SimulatorThreads::~SimulatorThreads() {
  ends_ = true;
  ++loops_;
  loops_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void SimulatorThreads::run(Work work) {
  if (threads_.empty()) {
    for (int64_t i = 0; i < count_; ++i) work(i);
    return;
  }
  work_ = &work;
  done_ = 0;
  state_ = static_cast<uint64_t>(++loops_) << 32;
  loops_.notify_all();
  take();
  for (int64_t done = done_; done < count_; done = done_) done_.wait(done);
}

void SimulatorThreads::serve() {
  pthread_setname_np(pthread_self(), "trainkit-sim");
  at::get_num_threads();
  at::set_num_threads(1);
  uint32_t loops = loops_;
  ++started_;
  started_.notify_one();
  for (;;) {
    loops_.wait(loops);
    loops = loops_;
    if (ends_) return;
    take();
  }
}

void SimulatorThreads::take() {
  for (;;) {
    const auto begin = static_cast<int64_t>(state_.fetch_add(static_cast<uint64_t>(each_)) & 0xffffffff);
    if (begin >= count_) return;
    const int64_t end = std::min(begin + each_, count_);
    const Work& work = *work_;  // see Note [Simulator threads]
    for (int64_t i = begin; i < end; ++i) work(i);
    if (done_.fetch_add(end - begin) + end - begin == count_) done_.notify_one();
  }
}

}  // namespace trainkit::detail
