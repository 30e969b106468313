#include "rl/simulator_threads.h"

#include <ATen/Parallel.h>
#include <pthread.h>

#include <algorithm>

#include "core/machine/block_signals.h"

namespace trainkit::detail {

SimulatorThreads::SimulatorThreads(int64_t threads, int64_t count)
    : count_(count), each_(std::max<int64_t>(1, count / (threads * 8))) {
  if (threads == 1) return;
  const int num_threads = at::get_num_threads();
  const BlockSignals no_handlers;
  busy_ = threads - 1;
  for (int64_t i = 1; i < threads; ++i) threads_.emplace_back([this] { serve(); });
  for (int64_t busy = busy_; busy != 0; busy = busy_) busy_.wait(busy);
  // at::set_num_threads() in a thread also sets the number with which later threads start.
  at::set_num_threads(num_threads);
}

SimulatorThreads::~SimulatorThreads() {
  ends_ = true;
  ++round_;
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void SimulatorThreads::run(Work work) {
  next_ = 0;
  if (!threads_.empty()) {
    work_ = &work;
    busy_ = std::ssize(threads_);
    ++round_;
    round_.notify_all();
  }
  take(work);
  for (int64_t busy = busy_; busy != 0; busy = busy_) busy_.wait(busy);
}

void SimulatorThreads::serve() {
  pthread_setname_np(pthread_self(), "trainkit-sim");
  at::get_num_threads();
  at::set_num_threads(1);
  uint32_t round = round_;
  if (--busy_ == 0) busy_.notify_one();
  for (;;) {
    round_.wait(round);
    ++round;
    if (ends_) return;
    take(*work_);
    if (--busy_ == 0) busy_.notify_one();
  }
}

void SimulatorThreads::take(Work work) {
  for (int64_t begin = next_.fetch_add(each_); begin < count_; begin = next_.fetch_add(each_)) {
    for (int64_t i = begin; i < std::min(begin + each_, count_); ++i) work(i);
  }
}

}  // namespace trainkit::detail
