#include "distributed/replicas/data_parallel.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/tensors/recorded.h"
#include "distributed/replicas/replica_tools.h"
#include "trainkit/core/error.h"
#ifdef TRAINKIT_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace trainkit::detail {

// Note [Replica threads]
// ~~~~~~~~~~~~~~~~~~~~~~
// Each replica has one persistent thread. A thread per step would be slow to start, and LibTorch's intra-op thread
// count is a property of the thread.
//
// run() publishes `task_`, increments `round_` under `mutex_` and waits until `running_` is 0. A thread takes a task
// when `round_` differs from the round that it has seen last. A spurious wake-up therefore cannot run a task twice. No
// thread can miss a round either, because run() returns only after every thread has finished the round. `task_` and
// `on_exception_` point into the caller's frame; they stay valid for the same reason and are read without the lock.
//
// A thread reports an exception through `on_exception_` before it reports completion. This releases replicas that wait
// for it in LocalGroup. Otherwise run() would wait forever for them. They throw as a consequence, so run() rethrows the
// exception that came first.

ReplicaThreads::ReplicaThreads(int64_t count, int intra_op_threads) {
  for (int64_t i = 0; i < count; ++i) threads_.emplace_back([this, i, intra_op_threads] { loop(i, intra_op_threads); });
}

ReplicaThreads::~ReplicaThreads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  begin_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ReplicaThreads::run(const Task& task, const std::function<void()>& on_exception) {
  std::unique_lock lock(mutex_);
  task_ = &task;
  on_exception_ = &on_exception;
  first_exception_ = nullptr;
  running_ = static_cast<int64_t>(threads_.size());
  ++round_;
  begin_.notify_all();
  end_.wait(lock, [&] { return running_ == 0; });
  if (first_exception_) std::rethrow_exception(std::exchange(first_exception_, nullptr));
}

void ReplicaThreads::loop(int64_t replica, int intra_op_threads) {
  // The number of intra-op threads is a property of a thread. A new thread starts with the last value set anywhere.
  at::set_num_threads(intra_op_threads);
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    begin_.wait(lock, [&] { return stopping_ || round_ != seen; });
    if (stopping_) return;
    seen = round_;
    lock.unlock();
    try {
      (*task_)(replica);
    } catch (...) {
      lock.lock();
      if (!first_exception_) first_exception_ = std::current_exception();
      lock.unlock();
      (*on_exception_)();
    }
    lock.lock();
    if (--running_ == 0) end_.notify_one();
  }
}

// Note [Replica barrier]
// ~~~~~~~~~~~~~~~~~~~~~~
// LocalGroup::all_reduce is a barrier that also adds. Every replica stores a pointer to its tensor. The last one to
// arrive adds all tensors in replica order, so the bits do not depend on the order of arrival. It writes the sum to
// every tensor and increments `round_`, for which the others wait. They cannot wait for `arrived_`, which is already 0
// again when a waiter wakes up.
//
// abort() releases the waiters and rejects later callers until reset(). A waiter checks `round_` again after waking up:
// if its round was completed before the abort, its sum is valid and it returns normally.

void LocalGroup::all_reduce(int64_t replica, at::Tensor& tensor) {
  const c10::AutoGradMode no_grad(false);
  if (of_gpus_ && !tensor.is_cpu()) return of_gpus_->all_reduce(replica, tensor);
  std::unique_lock lock(mutex_);
  const uint64_t round = round_;
  tensors_[static_cast<size_t>(replica)] = &tensor;
  if (!aborted_ && ++arrived_ == size()) {
    // See Note [Replica barrier].
    for (const at::Tensor* one : tensors_) {
      TORCH_CHECK(one->sizes() == tensors_[0]->sizes(), "replicas reduce different tensors at the same time, of ",
                  tensors_[0]->sizes(), " and ", one->sizes());
    }
    at::Tensor sum = tensors_[0]->clone();
    for (size_t i = 1; i < tensors_.size(); ++i) sum.add_(*tensors_[i]);
    for (at::Tensor* one : tensors_) one->copy_(sum);
    arrived_ = 0;
    ++round_;
    changed_.notify_all();
    return;
  }
  changed_.wait(lock, [&] { return aborted_ || round_ != round; });
  if (round_ == round) throw_replica_failed();
}

bool LocalGroup::any(int64_t replica, bool value) {
  at::Tensor count = at::full({}, value ? 1 : 0, at::kLong);  // on the CPU, also for replicas on GPUs
  all_reduce(replica, count);
  return count.item<int64_t>() > 0;
}

void LocalGroup::abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  changed_.notify_all();
}

void LocalGroup::reset() {
  const std::lock_guard lock(mutex_);
  aborted_ = false;
  arrived_ = 0;
}

namespace {

int threads_per_replica(const std::vector<at::Device>& devices) {
  return std::max(1, at::get_num_threads() / static_cast<int>(devices.size()));
}

StepSeed::Replicas numbered(const std::vector<at::Device>& devices) {
  StepSeed::Replicas replicas;
  for (size_t i = 0; i < devices.size(); ++i) replicas.emplace_back(i, devices[i]);
  return replicas;
}

/// The current streams of the devices; empty on the CPU.
std::vector<c10::Stream> current_streams(const std::vector<at::Device>& devices) {
  std::vector<c10::Stream> streams;
  for (const at::Device device : devices) {
    if (!device.is_cpu()) streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  return streams;
}

/// Sums the gradients in parallel: thread t sums every n-th parameter, in replica order and without allocation unless
/// it is sparse: its rows then follow each other. With shared weights the other replicas release their gradients;
/// otherwise each replica gets a copy of the sum.
void reduce_on_cpu(const std::vector<std::vector<at::Tensor>>& parameters, bool share_weights,
                   ReplicaThreads& threads) {
  threads.run([&](int64_t thread) {
    const c10::AutoGradMode no_grad(false);
    for (size_t p = static_cast<size_t>(thread); p < parameters[0].size(); p += parameters.size()) {
      at::Tensor& sum = parameters[0][p].mutable_grad();
      for (size_t i = 1; i < parameters.size(); ++i) {
        at::Tensor& gradient = parameters[i][p].mutable_grad();
        if (!gradient.defined()) continue;
        if (!sum.defined()) {
          sum = gradient;
          gradient = share_weights ? at::Tensor() : gradient.clone();
          continue;
        }
        if (sum.is_sparse() && !gradient.is_sparse()) {
          sum = gradient.add(sum);
        } else {
          sum.add_(gradient);
        }
        if (share_weights) gradient.reset();
      }
      if (share_weights || !sum.defined()) continue;
      for (size_t i = 1; i < parameters.size(); ++i) {
        at::Tensor& gradient = parameters[i][p].mutable_grad();
        if (gradient.defined() && !gradient.is_sparse() && !sum.is_sparse()) {
          gradient.copy_(sum);
        } else {
          gradient = sum.clone();
        }
      }
    }
  });
}

/// Clears this thread's error of the CUDA runtime: calls of a capture that fails in another thread set it, also while
/// an exception unwinds the stack, and the next launch would report it.
void clear_runtime_error() {
#ifdef TRAINKIT_WITH_CUDA
  (void)cudaGetLastError();
#endif
}

}  // namespace

DataParallel::DataParallel(std::vector<std::shared_ptr<torch::nn::Module>> modules, std::vector<at::Device> devices,
                           bool share_weights, const DeviceReplicatorOptions& options)
    : modules_(std::move(modules)),
      state_(modules_),
      devices_(std::move(devices)),
      share_weights_(share_weights),
      options_(options),
      sums_(phases_, state_, options_),
      group_(static_cast<int64_t>(modules_.size())),
      threads_(static_cast<int64_t>(modules_.size()), threads_per_replica(devices_)),
      idle_team_(devices_.size() > 1 && devices_[0].is_cpu() ? make_idle_team() : nullptr) {
  const c10::AutoGradMode no_grad(false);
  if (share_weights_) {
    const auto first = unique_parameters(*modules_[0]);
    for (size_t i = 1; i < modules_.size(); ++i) {
      auto others = unique_parameters(*modules_[i]);
      for (size_t p = 0; p < first.size(); ++p) others[p].second.set_data(first[p].second.detach());
    }
  }
  synchronize();
  if (devices_.size() > 1 && !devices_[0].is_cpu()) {
    collectives_ = std::make_unique<ReplicaCollectives>(devices_);
    group_.use(*collectives_);
  }
  for (size_t i = 0; i < modules_.size(); ++i) {
    bind_replica(*modules_[i], group_, static_cast<int64_t>(i));
    buffers_.push_back(replica_buffers(*modules_[i]));
  }
  sums_.use_reducers(collectives_ && options_.sharding == Sharding::kNone);
  sums_.follow(/*is_new=*/true);
  phases_.on_change([this](bool is_new) { sums_.follow(is_new); });
}

void PhaseSums::follow(bool is_new) {
  if (is_new) sums_.clear();
  if (sums_.size() <= phases_.current()) sums_.resize(phases_.current() + 1);
  Sums& own = sums_[phases_.current()];
  if (!own.parameters.empty()) return;
  for (size_t i = 0; i < state_.replicas(); ++i) {
    own.parameters.push_back(tensors_of(phases_.of_phase(state_.trained(i))));
  }
  if (has_reducers_ && !own.parameters[0].empty()) {
    own.reducer = std::make_unique<BucketReducer>(own.parameters, options_.first_bucket_bytes, options_.bucket_bytes);
  }
}

/// See Note [Replicas follow the first one].
void DataParallel::follow_model() {
  const ModelState::Change change = state_.follow();
  if (!change.parameter) return;
  if (!shards_.empty()) throw_status(state_.sharding_error(*change.parameter));
  sums_.follow(/*is_new=*/true);
}

void DataParallel::begin_step() {
  follow_model();
  seed_.begin(numbered(devices_));
}

const std::shared_ptr<torch::nn::Module>& DataParallel::module(int64_t replica) const {
  TORCH_CHECK_INDEX(replica >= 0 && replica < replicas(), "replica must be in 0..", replicas() - 1, ", got ", replica);
  return modules_[static_cast<size_t>(replica)];
}

void DataParallel::synchronize() {
  const c10::AutoGradMode no_grad(false);
  const auto parameters = unique_parameters(*modules_[0]);
  const auto buffers = unique_buffers(*modules_[0]);
  for (size_t i = 1; i < modules_.size(); ++i) {
    const auto to_parameters = unique_parameters(*modules_[i]);
    const auto to_buffers = unique_buffers(*modules_[i]);
    TORCH_CHECK_VALUE(to_parameters.size() == parameters.size() && to_buffers.size() == buffers.size(),
                      "the factory made models with different parameters");
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (!share_weights_) at::Tensor(to_parameters[p].second).copy_(parameters[p].second);
    }
    for (size_t b = 0; b < buffers.size(); ++b) at::Tensor(to_buffers[b].second).copy_(buffers[b].second);
  }
}

std::string DataParallel::graph_obstacle() const { return collectives_ ? "" : "the replicas share one device"; }

void DataParallel::use_current_streams() {
  for (const auto& replica : sums_.parameters()) {
    for (const at::Tensor& parameter : replica) accumulate_on_current_stream(parameter);
  }
}

// When backward() throws, autograd's threads of the other devices may still run an operation of the capture, which
// fails later. They work in order: a small backward waits for that operation, and its first launch takes up the error.
void DataParallel::recover() {
  const c10::AutoGradMode grad(true);
  threads_.run([](int64_t) { clear_runtime_error(); });
  for (const at::Device device : devices_) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      try {
        const at::Tensor one = at::ones({1}, at::TensorOptions(device)).requires_grad_();
        (one * 1).sum().backward();
      } catch (const std::exception&) {
        clear_runtime_error();
      }
    }
  }
}

void DataParallel::run(const Body& body, bool reduce_gradients, const OnSent&) {
  follow_model();
  phases_.list_inputs(modules_, state_.version());
  if (reduce_gradients) synchronize_buffers();
  group_.reset();
  const at::ThreadLocalState caller;  // grad mode, autocast
  const std::vector<c10::Stream> streams = current_streams(devices_);
  const int64_t run = seed_.next_run(numbered(devices_), /*last=*/reduce_gradients);
  begin_reduction(reduce_gradients);
  try {
    threads_.run(
        [&](int64_t replica) {
          const at::ThreadLocalStateGuard as_caller(caller);
          const at::Device device = devices_[static_cast<size_t>(replica)];
          const c10::OptionalDeviceGuard on_device(device.is_cpu() ? std::nullopt : std::optional(device));
          const c10::MultiStreamGuard on_streams(streams);  // of all devices: replicas copy from one another
          const ReplicaRandomGuard random(seed_.of(replica, run));
          try {
            run_replica(replica, body, /*is_last=*/reduce_gradients);
          } catch (...) {
            clear_runtime_error();
            throw;
          }
        },
        [&] {
          group_.abort();
          if (collectives_) collectives_->abort();
        });
  } catch (...) {
    if (sums_.reducer()) sums_.reducer()->abandon();
    if (collectives_) collectives_->abandon();
    throw;
  }
  if (!reduce_gradients) return;
  const detail::ProfileStage stage("reduce gradients");
  const auto begin = std::chrono::steady_clock::now();
  if (sums_.reducer()) sums_.reducer()->finish();
  if (devices_[0].is_cpu()) reduce_on_cpu(sums_.parameters(), share_weights_, threads_);
  reduce_time_.add_since(begin);
}

void DataParallel::synchronize_buffers() {
  const c10::AutoGradMode no_grad(false);
  for (size_t i = 1; i < buffers_.size(); ++i) {
    const std::vector<at::Tensor> to = uncounted(buffers_[i]);
    for (size_t b = 0; b < to.size(); ++b) to[b].copy_(buffers_[0][b]);
  }
}

}  // namespace trainkit::detail
