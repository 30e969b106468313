#include "distributed/replicas/distributed.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <limits>

#include "core/tensors/recorded.h"
#include "distributed/group/rendezvous.h"
#include "distributed/replicas/replica_tools.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

std::string shape_text(const at::Tensor& tensor) {
  std::string text = std::string(c10::toString(tensor.scalar_type())) + " [";
  for (const int64_t size : tensor.sizes()) text += (text.back() == '[' ? "" : ", ") + std::to_string(size);
  return text + "]";
}

using Parameters = std::vector<std::pair<std::string, at::Tensor>>;

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

}  // namespace

c10::intrusive_ptr<c10::ivalue::Future> BucketHook::runHook(c10d::GradBucket& bucket) {
  const at::Tensor& gradients = bucket.getBuffer();
  const auto type = wire_type(compression_, gradients);
  const at::Tensor sent = type ? gradients.to(*type) : gradients;
  const auto work = group_.all_reduce(sent);
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

at::Tensor BucketHook::parseHookResult(const c10::IValue& result) {
  return c10d::detail::parseCppCommHookResult(result);
}

void Distributed::Ranks::all_reduce(int64_t, at::Tensor& tensor) {
  throw_status(group_.all_reduce(tensor, "all_reduce inside the model"));
}

Distributed::Distributed(std::shared_ptr<torch::nn::Module> module, const DeviceReplicatorOptions& options)
    : process_group_(options.process_group),
      module_(std::move(module)),
      state_({module_}),
      known_modes_{state_.modes()},
      device_(*options.device),
      options_(options),
      group_(*process_group_),
      sent_(std::make_shared<BucketHook::Sent>()) {
  std::vector<DigestField> fields;
  for (const auto& [name, tensor] : unique_parameters(*module_)) {
    fields.push_back({"parameter " + name, shape_text(tensor)});
  }
  for (const auto& [name, tensor] : unique_buffers(*module_)) fields.push_back({"buffer " + name, shape_text(tensor)});
  fields.push_back({"gradient_compression", std::to_string(static_cast<int>(options.gradient_compression))});
  fields.push_back({"bucket_bytes", std::to_string(options.bucket_bytes)});
  fields.push_back({"first_bucket_bytes", std::to_string(options.first_bucket_bytes)});
  fields.push_back({"find_unused_parameters", options.find_unused_parameters ? "true" : "false"});
  constexpr const char* kShardings[] = {"none", "optimizer", "gradients"};
  fields.push_back({"shard", kShardings[static_cast<int>(options.sharding)]});
  for (DigestField& field : state_.fields()) fields.push_back(std::move(field));
  throw_status(process_group_->compare_digest(fields));
  trained_ = state_.trained(0);
  has_collectives_ = bind_replica(*module_, group_, process_group_->rank());
  buffers_ = replica_buffers(*module_);
  synchronize();
  create_reducer();
}

Distributed::~Distributed() = default;

// Note [Reducer hook]
// ~~~~~~~~~~~~~~~~~~~
// c10d's Reducer fills buckets of gradients during backward and passes each full bucket to BucketHook, which starts the
// all-reduce and keeps the pending work in Sent. With a hook of ours the Reducer sums and does not divide: bodies scale
// their losses. The kept work serves two purposes: throw_if_broken() reports a failed collective with the index of its
// bucket and the lost rank, and complete_reduction() knows which buckets the other ranks still wait for.
//
// All ranks must start the same collectives in the same order: buffers, bucket 0, bucket 1, ..., then the map of used
// parameters (find_unused_parameters). A rank without a loss or with a failed body therefore sends the remaining
// buckets itself, with its gradients or with zeros. A rank that skipped a bucket would make the others wait until the
// timeout, or pair buckets of different sizes.

void Distributed::create_reducer() {
  logger_.reset();
  reducer_.reset();
  if (trained_.empty() || options_.sharding != Sharding::kNone) return;
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
      parameters, std::move(buckets), ranks().c10d(), dense, options_.bucket_bytes, find_unused,
      /*gradient_as_bucket_view=*/true, std::move(names), options_.first_bucket_bytes,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false, std::vector<int64_t>());
  logger_ = std::make_shared<c10d::Logger>(reducer_);
  reducer_->set_logger(logger_);
  // See Note [Reducer hook].
  reducer_->register_comm_hook(std::make_unique<BucketHook>(ranks(), options_.gradient_compression, sent_));
  share_buckets();
}

/// Lets the other ranks of this machine read and write the buckets where they are.
void Distributed::share_buckets() {
  for (const c10d::GradBucket& bucket : reducer_->get_grad_buckets(/*return_zero_tensors=*/false)) {
    if (!wire_type(options_.gradient_compression, bucket.getBuffer())) ranks().share(bucket.getBuffer());
  }
}

/// See Note [Replicas follow the first one].
void Distributed::follow_model() {
  constexpr size_t kMostModes = 64;
  const ModelState::Change change = state_.follow();
  if (change.parameter && shards_) throw_status(state_.sharding_error(*change.parameter));
  bool is_new = change.parameter.has_value();
  if (change.modes) {
    if (known_modes_.size() == kMostModes) known_modes_.clear();
    is_new |= known_modes_.insert(state_.modes()).second;
  }
  if (is_new) throw_status(process_group_->compare_digest(state_.fields()));
  if (!change.parameter) return;
  trained_ = state_.trained(0);
  create_reducer();
}

at::Device Distributed::device(int64_t replica) const {
  TORCH_CHECK_INDEX(replica == 0, "replica must be 0, got ", replica);
  return device_;
}

const std::shared_ptr<torch::nn::Module>& Distributed::module(int64_t replica) const {
  TORCH_CHECK_INDEX(replica == 0, "replica must be 0, got ", replica);
  return module_;
}

void Distributed::synchronize() {
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> tensors;
  for (const auto& named : {unique_parameters(*module_), unique_buffers(*module_)}) {
    for (const auto& [name, tensor] : named) tensors.push_back(tensor.detach());
  }
  throw_status(process_group_->broadcast(tensors, 0, "broadcast of the weights"));
}

void Distributed::synchronize_buffers() {
  if (!buffers_.empty()) throw_status(process_group_->broadcast(buffers_, 0, "broadcast of the buffers"));
}

std::string Distributed::graph_obstacle() const {
  if (!device_.is_cuda()) return "the device is " + device_.str();
  if (options_.find_unused_parameters) return "find_unused_parameters reads from the device";
  return "";
}

void Distributed::use_current_streams() {
  for (const auto& [name, parameter] : trained_) accumulate_on_current_stream(parameter);
}

void Distributed::begin_step() {
  follow_model();
  is_reducer_used_ = false;
  seed_.begin({{process_group_->rank(), device_}});
}

void Distributed::run(const Body& body, bool reduce_gradients, const OnSent& on_sent) {
  if (c10::GradMode::is_enabled()) follow_model();  // an evaluation may have another number of runs on each rank
  const int64_t rank = process_group_->rank();
  const ReplicaRandomGuard random(seed_.of(rank, seed_.next_run({{rank, device_}}, /*last=*/reduce_gradients)));
  TORCH_CHECK(shards_ || trained_.empty() || options_.sharding == Sharding::kNone,
              "call divide_parameters() before run()");
  const bool reduce =
      shards_ ? reduce_gradients || shards_->reduction().reduces_every_run() : reduce_gradients && reducer_;
  if (reduce) begin_reduction(/*sends_buffers=*/reduce_gradients);
  // With find_unused_parameters the Reducer starts one more collective after the last bucket. The caller's collective
  // would come before it on this rank only, and all ranks must keep one order.
  sent_->on_sent = options_.find_unused_parameters || !reduce_gradients ? nullptr : on_sent;
  ranks().at("forward and backward");
  try {
    backward(body, reduce, /*is_last=*/reduce_gradients);
  } catch (...) {
    if (ranks().is_capturing()) throw;          // the device has run nothing, and the other ranks wait for nothing
    if (reduce && !shards_) throw_if_broken();  // names the bucket whose failure made backward throw
    // The other ranks wait in a collective inside the model, which this rank cannot complete.
    if (has_collectives_) process_group_->leave(std::string(status_from_current_exception().message()));
    if (reduce && !has_collectives_) release_other_ranks();
    throw;
  }
  reduction_begun_ = false;
}

void Distributed::backward(const Body& body, bool reduce, bool is_last) {
  if (shards_) {
    shards_->begin(reduce, std::exchange(sent_->on_sent, nullptr));
    return backward_of_shards(body(0), is_last);
  }
  if (reduce) is_reducer_used_ = true;
  // The Reducer remembers the parameters that runs without reduction have used, also if their gradients were reduced by
  // complete_reduction() or dropped since.
  if (reducer_ && options_.find_unused_parameters && !has_gradients(trained_)) reducer_->reset_state();
  if (reduce) reducer_->prepare_for_forward();
  if (!reduce && reducer_) accumulate_in_buckets();
  const at::Tensor loss = body(0);
  if (!loss.defined() && reduce) return complete_reduction(/*contribute=*/true);
  if (!loss.defined()) return;
  if (!reduce) return loss.backward();
  reducer_->prepare_for_backward(options_.find_unused_parameters ? std::vector<at::Tensor>{loss}
                                                                 : std::vector<at::Tensor>{});
  sent_->started = std::chrono::steady_clock::now();
  sent_->last = sent_->started;
  loss.backward();
  add_reduction_since(sent_->last);
  TORCH_CHECK_VALUE(sent_->works.size() == reducer_->get_grad_buckets(/*return_zero_tensors=*/false).size(),
                    "the loss did not reach ", parameters_without_gradient(trained_),
                    ": set find_unused_parameters if that is intended");
}

/// Makes new gradients views of the buckets before a micro-batch that is not reduced, so that accumulated gradients are
/// not in memory twice. With find_unused_parameters a parameter without a gradient must stay so.
void Distributed::accumulate_in_buckets() {
  if (options_.find_unused_parameters || has_gradients(trained_)) return;
  const c10::AutoGradMode no_grad(false);
  for (const c10d::GradBucket& bucket : reducer_->get_grad_buckets(/*return_zero_tensors=*/false)) {
    at::Tensor(bucket.getBuffer()).zero_();
    const std::vector<at::Tensor> parameters = bucket.getParameters(), views = views_of(bucket);
    for (size_t i = 0; i < views.size(); ++i) parameters[i].mutable_grad() = views[i];
  }
}

void Distributed::begin_reduction(bool sends_buffers) {
  reduction_begun_ = is_reducer_used_ = true;
  if (reducer_ && reducer_->should_rebuild_buckets()) {
    // NCCL's process group holds a bucket until its work is waited for, or until its watchdog polls about 100 ms later.
    // Without this wait two sets of buckets would be in memory at the peak of the second step.
    throw_if_broken();
  }
  sent_->works.clear();
  sent_->started = std::chrono::steady_clock::now();
  if (sends_buffers) synchronize_buffers();
  if (!reducer_) return;
  try {
    if (reducer_->rebuild_buckets()) share_buckets();
  } catch (const std::exception& error) {
    throw_status(ranks().failure("the arrangement of buckets", sent_->started, error.what()));
  }
}

/// Sends what the other ranks wait for after a failure here. Ignores errors: the caller reports the first one.
void Distributed::release_other_ranks() {
  if (shards_ && !shards_->reduction().is_reducing()) return;  // all buckets were sent
  try {
    complete_reduction(/*contribute=*/false);
  } catch (const std::exception&) {  // the process group is unusable now
  }
}

void Distributed::reduce() {
  if (!reduces()) return;
  begin_reduction(/*sends_buffers=*/true);
  complete_reduction(/*contribute=*/true, /*records_order=*/false);
}

void Distributed::end_capture() {
  ranks().set_capturing(false);
  sent_->works.clear();  // they are part of the graph
}

void Distributed::rearrange() {
  if (reducer_) reducer_->reset_state();
}

void Distributed::skip_reduction() {
  if (!reduces()) return;
  if (!reduction_begun_) begin_reduction(/*sends_buffers=*/true);
  complete_reduction(/*contribute=*/false);
}

/// Sends the buckets that backward has not sent and that the other ranks wait for. With `contribute` it sends the
/// existing gradients, which then become the sums; otherwise zeros, for a failed step. `records_order`: the other ranks
/// use their Reducers, which may be about to rearrange their buckets. See Note [Reducer hook].
void Distributed::complete_reduction(bool contribute, bool records_order) {
  reduction_begun_ = false;
  if (shards_) {
    if (!shards_->reduction().is_reducing()) shards_->begin(/*reduces=*/true);
    return shards_->reduction().end(contribute);
  }
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
    sent_->works.push_back(ranks().all_reduce(sent.back()));
  }
  at::Tensor used;
  if (options_.find_unused_parameters && first < buckets.size()) {
    used = at::zeros({static_cast<int64_t>(trained_.size())}, at::kInt);
    for (size_t i = 0; contribute && i < trained_.size(); ++i) used[i] = trained_[i].second.grad().defined() ? 1 : 0;
    used = used.to(device_);
    sent_->works.push_back(ranks().all_reduce(used));
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

void Distributed::copy_gradients(const c10d::GradBucket& bucket, bool to_bucket) const {
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

void Distributed::abandon_step() {
  // All ranks arrange their buckets anew after it, so not for a step that only this rank has abandoned.
  if (reducer_ && std::exchange(is_reducer_used_, false)) reducer_->reset_state();
  if (shards_) shards_->reduction().release();
  reduction_begun_ = false;
  seed_.restart();
}

void Distributed::throw_if_broken() {
  const detail::ProfileStage stage("wait for gradients of other ranks");
  for (size_t i = 0; i < sent_->works.size(); ++i) {
    const std::string what = "allreduce(bucket " + std::to_string(i) + ")";
    ranks().at(what);
    throw_status(ranks().wait(sent_->works[i], what, sent_->started));
  }
}

}  // namespace trainkit::detail
