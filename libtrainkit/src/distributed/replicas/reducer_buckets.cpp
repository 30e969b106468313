#include "distributed/replicas/reducer_buckets.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <unordered_map>

#include "core/tensors/recorded.h"
#include "distributed/group/wire_type.h"
#include "distributed/replicas/replica_tools.h"

namespace trainkit::detail {
namespace {

using Parameters = ReducerBuckets::Parameters;

bool has_gradients(const Parameters& parameters) {
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const auto& named) { return named.second.grad().defined(); });
}

std::string parameters_without_gradient(const Parameters& parameters) {
  std::string names;
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.grad().defined()) names += (names.empty() ? "" : ", ") + name;
  }
  return names.empty() ? "every parameter" : names;
}

/// The gradients of a bucket as views of its buffer, in the layout of the parameters.
/// Source: Reducer::initialize_bucket_views; GradBucket::getGradients gives contiguous views.
std::vector<at::Tensor> views_of(const c10d::GradBucket& bucket) {
  const std::vector<at::Tensor> parameters = bucket.getParameters();
  std::vector<at::Tensor> views = bucket.getGradients();
  for (size_t i = 0; i < views.size(); ++i) {
    if (!parameters[i].is_non_overlapping_and_dense()) continue;
    views[i] = bucket.getBuffer().as_strided(parameters[i].sizes(), parameters[i].strides(), views[i].storage_offset());
  }
  return views;
}

/// Copies the gradients of a bucket into its buffer, or back.
void copy_gradients(const c10d::GradBucket& bucket, bool to_bucket) {
  const c10::AutoGradMode no_grad(false);
  const std::vector<at::Tensor> views = views_of(bucket);
  const auto parameters = bucket.getParameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor& gradient = parameters[i].mutable_grad();
    if (to_bucket) {
      if (gradient.defined()) at::Tensor(views[i]).copy_(gradient);
    } else if (gradient.defined()) {
      gradient.copy_(views[i]);
    } else {
      gradient = views[i].clone();
    }
  }
}

}  // namespace

/// Work sent in the current backward. Shared with the hook, which the Reducer owns.
struct ReducerBuckets::Sent {
  std::chrono::steady_clock::time_point started;
  std::chrono::steady_clock::time_point last;         // time at which the last bucket was full
  std::vector<c10::intrusive_ptr<c10d::Work>> works;  // in bucket order
  ReplicaStrategy::OnSent on_sent;                    // called after the last bucket
};

/// Starts the all-reduce of a bucket of gradients when backward has filled it, and records the pending work.
class ReducerBuckets::Hook final : public c10d::CommHookInterface {
 public:
  Hook(ProcessGroup::Impl& ranks, GradientCompression compression, std::shared_ptr<Sent> sent)
      : ranks_(ranks), compression_(compression), sent_(std::move(sent)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const at::Tensor& gradients = bucket.getBuffer();
    const auto type = wire_type(compression_, gradients);
    const at::Tensor sent = type ? gradients.to(*type) : gradients;
    const auto work = ranks_.all_reduce(sent);
    sent_->works.push_back(work);
    sent_->last = std::chrono::steady_clock::now();
    if (bucket.isLast() && sent_->on_sent) sent_->on_sent();
    if (!type) return work->getFuture();
    return work->getFuture()->then(
        [gradients, sent](c10::ivalue::Future& done) -> c10::IValue {
          done.value();  // rethrows the collective's exception
          return at::Tensor(gradients).copy_(sent);
        },
        c10::TensorType::get());
  }
  at::Tensor parseHookResult(const c10::IValue& result) override {
    return c10d::detail::parseCppCommHookResult(result);
  }

 private:
  ProcessGroup::Impl& ranks_;
  GradientCompression compression_;
  std::shared_ptr<Sent> sent_;
};

// Note [Reducer hook]
// ~~~~~~~~~~~~~~~~~~~
// c10d's Reducer fills buckets of gradients during backward and passes each full bucket to Hook, which starts the
// all-reduce and keeps the pending work in Sent. With a hook of ours the Reducer sums and does not divide: bodies scale
// their losses. The kept work serves two purposes: throw_if_broken() reports a failed collective with the index of its
// bucket and the lost rank, and complete() knows which buckets the other ranks still wait for.
//
// All ranks must start the same collectives in the same order: buffers, bucket 0, bucket 1, ..., then the map of used
// parameters (find_unused_parameters). A rank without a loss or with a failed body therefore sends the remaining
// buckets itself, with its gradients or with zeros. A rank that skipped a bucket would make the others wait until the
// timeout, or pair buckets of different sizes.

ReducerBuckets::ReducerBuckets(ProcessGroup::Impl& ranks, Parameters trained, const DeviceReplicatorOptions& options,
                               TimeSum& time)
    : ranks_(ranks), trained_(std::move(trained)), options_(options), time_(time), sent_(std::make_shared<Sent>()) {
  const bool find_unused = options_.find_unused_parameters;
  const std::vector<at::Tensor> parameters = tensors_of(trained_);
  std::unordered_map<size_t, std::string> names;
  for (size_t i = 0; i < trained_.size(); ++i) names[i] = trained_[i].first;
  // Start with one bucket: the Reducer learns the order of the gradients in the first backward and then rebuilds the
  // buckets. With find_unused_parameters it does not rebuild. torch.nn.parallel.DistributedDataParallel does the same.
  const auto limit = static_cast<size_t>(std::numeric_limits<int64_t>::max());
  const std::vector<size_t> limits = find_unused ? std::vector<size_t>{static_cast<size_t>(options_.first_bucket_bytes),
                                                                       static_cast<size_t>(options_.bucket_bytes)}
                                                 : std::vector<size_t>{limit};
  const std::vector<bool> dense(parameters.size(), false);
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, limits, dense));
  std::reverse(buckets.begin(), buckets.end());
  reducer_ = std::make_shared<c10d::Reducer>(
      parameters, std::move(buckets), ranks_.c10d(), dense, options_.bucket_bytes, find_unused,
      /*gradient_as_bucket_view=*/true, std::move(names), options_.first_bucket_bytes,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false, std::vector<int64_t>());
  logger_ = std::make_shared<c10d::Logger>(reducer_);
  reducer_->set_logger(logger_);
  // See Note [Reducer hook].
  reducer_->register_comm_hook(std::make_unique<Hook>(ranks_, options_.gradient_compression, sent_));
  share_buckets();
}

/// Lets the other ranks of this machine read and write the buckets where they are.
void ReducerBuckets::share_buckets() {
  for (const c10d::GradBucket& bucket : reducer_->get_grad_buckets(/*return_zero_tensors=*/false)) {
    if (!wire_type(options_.gradient_compression, bucket.getBuffer())) ranks_.share(bucket.getBuffer());
  }
}

void ReducerBuckets::begin() {
  if (reducer_->should_rebuild_buckets()) {
    // NCCL's process group holds a bucket until its work is waited for, or until its watchdog polls about 100 ms later.
    // Without this wait two sets of buckets would be in memory at the peak of the second step.
    throw_if_broken();
  }
  sent_->works.clear();
  sent_->started = std::chrono::steady_clock::now();
}

void ReducerBuckets::arrange() {
  try {
    if (reducer_->rebuild_buckets()) share_buckets();
  } catch (const std::exception& error) {
    throw_status(ranks_.failure("the arrangement of buckets", sent_->started, error.what()));
  }
}

void ReducerBuckets::run(const DeviceReplicator::Body& body, const Run& run) {
  const bool find_unused = options_.find_unused_parameters;
  // Where the rows of one rank skip a layer, its buckets are ready earlier than those of the others, and would change
  // places with the collectives in the model's backward: they are sent after it.
  const bool overlaps = run.reduces && !(find_unused && run.has_collectives);
  // With find_unused_parameters the Reducer starts one more collective after the last bucket. The caller's collective
  // would come before it on this rank only, and all ranks must keep one order.
  sent_->on_sent = find_unused ? nullptr : run.on_sent;
  // The Reducer remembers the parameters that runs without reduction have used, also if their gradients were reduced by
  // complete() or dropped since.
  if (find_unused && !has_gradients(trained_)) reducer_->reset_state();
  overlaps ? reducer_->prepare_for_forward() : accumulate();
  const at::Tensor loss = body(0);
  if (!overlaps) {
    if (loss.defined()) run.backward(loss);
    if (run.reduces) complete(/*contribute=*/true, /*records_order=*/true);
    return;
  }
  if (!loss.defined()) return complete(/*contribute=*/true, /*records_order=*/true);
  reducer_->prepare_for_backward(find_unused ? std::vector<at::Tensor>{loss} : std::vector<at::Tensor>{});
  sent_->started = std::chrono::steady_clock::now();
  sent_->last = sent_->started;
  run.backward(loss);
  time_.add_since(sent_->last);
  // The Reducer marks unused parameters when the first gradient arrives. Here none did: this rank's rows do not count,
  // and the loss of a player reaches only what other ranks wait for (SyncBatchNorm).
  if (find_unused && sent_->works.empty()) return complete(/*contribute=*/true, /*records_order=*/true);
  TORCH_CHECK_VALUE(sent_->works.size() == reducer_->get_grad_buckets(/*return_zero_tensors=*/false).size(),
                    "the loss did not reach ", parameters_without_gradient(trained_),
                    ": set find_unused_parameters if that is intended");
}

/// Makes new gradients views of the buckets before a micro-batch that is not reduced, so that accumulated gradients are
/// not in memory twice. With find_unused_parameters a parameter without a gradient must stay so.
void ReducerBuckets::accumulate() {
  if (options_.find_unused_parameters || has_gradients(trained_)) return;
  const c10::AutoGradMode no_grad(false);
  for (const c10d::GradBucket& bucket : reducer_->get_grad_buckets(/*return_zero_tensors=*/false)) {
    at::Tensor(bucket.getBuffer()).zero_();
    const std::vector<at::Tensor> parameters = bucket.getParameters(), views = views_of(bucket);
    for (size_t i = 0; i < views.size(); ++i) parameters[i].mutable_grad() = views[i];
  }
}

/// See Note [Reducer hook].
void ReducerBuckets::complete(bool contribute, bool records_order) {
  // Overwrite the gradients of a failed step with zeros: they are no longer needed, and there may be no memory for new
  // buffers.
  const auto buckets = reducer_->get_grad_buckets(/*return_zero_tensors=*/contribute);
  const size_t first = sent_->works.size();
  std::vector<at::Tensor> sent;
  for (size_t i = first; i < buckets.size(); ++i) {
    const at::Tensor& bucket = buckets[i].getBuffer();
    if (contribute) {
      copy_gradients(buckets[i], /*to_bucket=*/true);
    } else {
      const c10::AutoGradMode no_grad(false);
      at::Tensor(bucket).zero_();
    }
    sent.push_back(bucket.to(wire_type(options_.gradient_compression, bucket).value_or(bucket.scalar_type())));
    sent_->works.push_back(ranks_.all_reduce(sent.back()));
  }
  at::Tensor used;
  if (options_.find_unused_parameters && first < buckets.size()) {
    used = at::zeros({static_cast<int64_t>(trained_.size())}, at::kInt);
    for (size_t i = 0; contribute && i < trained_.size(); ++i) used[i] = trained_[i].second.grad().defined() ? 1 : 0;
    used = used.to(trained_.front().second.device());
    sent_->works.push_back(ranks_.all_reduce(used));
  }
  throw_if_broken();
  if (!contribute) return;
  const c10::AutoGradMode no_grad(false);
  for (size_t i = first; i < buckets.size(); ++i) {
    at::Tensor(buckets[i].getBuffer()).copy_(sent[i - first]);
    copy_gradients(buckets[i], /*to_bucket=*/false);
  }
  for (size_t i = 0; used.defined() && i < trained_.size(); ++i) {
    if (used[i].item<int>() == 0) trained_[i].second.mutable_grad().reset();
  }
  // The other ranks have recorded the order of gradients and will rebuild their buckets in the next step; this rank
  // must join.
  if (records_order) reducer_->push_rebuilt_params_for_all_indices();
}

void ReducerBuckets::abandon(bool reduced) {
  // All ranks arrange their buckets anew after it, so not for a step that only this rank has abandoned.
  if (reduced) reducer_->reset_state();
}

void ReducerBuckets::forget_sent() { sent_->works.clear(); }

void ReducerBuckets::throw_if_broken() {
  const ProfileStage stage("wait for gradients of other ranks");
  for (size_t i = 0; i < sent_->works.size(); ++i) {
    const std::string what = "allreduce(bucket " + std::to_string(i) + ")";
    ranks_.at(what);
    throw_status(ranks_.wait(sent_->works[i], what, sent_->started));
  }
}

}  // namespace trainkit::detail
