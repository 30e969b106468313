#include "distributed/shards/parameter_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <map>

#include "core/tensors/recorded.h"
#include "distributed/replicas/replica_tools.h"

namespace trainkit::detail {
namespace {

/// Buckets of kGradients that exist at the same time.
constexpr size_t kMostPending = 2;

}  // namespace

ParameterShards::ParameterShards(std::vector<at::Tensor> parameters,
                                 const std::function<bool(const at::Tensor&)>& is_whole,
                                 const DeviceReplicatorOptions& options, ShardCollectives collectives)
    : sharding_(options.sharding),
      compression_(options.gradient_compression),
      collectives_(std::move(collectives)),
      parameters_(std::move(parameters)),
      parts_(parameters_.size()),
      part_gradients_(parameters_.size()),
      gradient_places_(parameters_.size()),
      places_(parameters_.size()),
      has_gradient_(parameters_.size()),
      is_computed_(parameters_.size()) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters_) {
    TORCH_CHECK_VALUE(parameter.is_non_overlapping_and_dense(), "sharding needs dense parameters");
    is_whole_.push_back(is_whole && is_whole(parameter) ? 1 : 0);
  }
  const std::vector<at::Tensor> weights = release_weights();
  for (ShardedBucket& places :
       divide_parameters(shapes_, is_whole_, collectives_.ranks, options.first_bucket_bytes, options.bucket_bytes)) {
    Bucket& bucket = buckets_.emplace_back();
    static_cast<ShardedBucket&>(bucket) = std::move(places);
    order_.push_back(buckets_.size() - 1);
    create_bucket(bucket, weights);
  }
  for (size_t p = 0; p < parameters_.size(); ++p) {
    hooks_.emplace_back(parameters_[p], [this, p] { note_gradient(p); });
  }
}

/// Returns the weights, on the host if they come from a GPU: their memory is freed before that of the buckets is
/// allocated, so that it is neither needed twice nor left in pieces between them.
std::vector<at::Tensor> ParameterShards::release_weights() {
  std::vector<at::Tensor> weights;
  for (at::Tensor& parameter : parameters_) {
    shapes_.push_back(at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options().device(at::kMeta)));
    if (!collectives_.empty_cache) {
      weights.push_back(parameter.detach());
      continue;
    }
    weights.push_back(collectives_.keeps_weights ? parameter.detach().to(at::kCPU) : at::Tensor());
    parameter.set_data(at::empty({0}, parameter.options().requires_grad(false)));
  }
  if (collectives_.empty_cache) collectives_.empty_cache();
  return weights;
}

/// Allocates the memory of a bucket and moves its weights there.
void ParameterShards::create_bucket(Bucket& bucket, const std::vector<at::Tensor>& weights) {
  const size_t number = buckets_.size() - 1;
  const at::TensorOptions like = parameters_[bucket.parameters.front()].options().requires_grad(false);
  bucket.weights = at::zeros({collectives_.ranks * bucket.part}, like);
  for (size_t i = 0; i < bucket.parameters.size(); ++i) {
    const size_t p = bucket.parameters[i];
    places_[p] = {number, i};
    const at::Tensor place = view(bucket, i, bucket.weights);
    if (weights[p].defined()) at::Tensor(place).copy_(weights[p]);
    parameters_[p].set_data(place);
    parts_[p] = cut(bucket, i, own_part(bucket, bucket.weights));
  }
  if (sharding_ == Sharding::kOptimizer) {
    bucket.gradients = at::zeros_like(bucket.weights);
    bucket.own = own_part(bucket, bucket.gradients);
  } else {
    bucket.own = at::zeros({bucket.part}, like);
  }
  for (size_t i = 0; i < bucket.parameters.size(); ++i) {
    const size_t p = bucket.parameters[i];
    part_gradients_[p] = cut(bucket, i, bucket.own);
    if (bucket.gradients.defined()) gradient_places_[p] = view(bucket, i, bucket.gradients);
  }
  if (!collectives_.share) return;
  collectives_.share(bucket.weights);
  if (bucket.gradients.defined()) collectives_.share(bucket.gradients);
}

const at::Tensor* ParameterShards::find_part(const at::Tensor& parameter) const {
  const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                  [&](const at::Tensor& one) { return one.is_same(parameter); });
  return found == parameters_.end() ? nullptr : &parts_[static_cast<size_t>(found - parameters_.begin())];
}

const at::Tensor& ParameterShards::part(const at::Tensor& parameter) const {
  const at::Tensor* part = find_part(parameter);
  TORCH_CHECK_VALUE(part, "a parameter of the optimizer is not a trained one of the model");
  return *part;
}

/// This rank's part of a buffer of the bucket's size.
at::Tensor ParameterShards::own_part(const Bucket& bucket, const at::Tensor& buffer) const {
  return buffer.narrow(0, collectives_.rank * bucket.part, bucket.part);
}

/// The parameter at `position` of a bucket, in a buffer of the bucket's size.
at::Tensor ParameterShards::view(const Bucket& bucket, size_t position, const at::Tensor& buffer) const {
  const at::Tensor& parameter = shapes_[bucket.parameters[position]];
  return buffer.as_strided(parameter.sizes(), parameter.strides(), buffer.storage_offset() + bucket.begins[position]);
}

/// The numbers of that parameter which are in `buffer`, this rank's part.
at::Tensor ParameterShards::cut(const Bucket& bucket, size_t position, const at::Tensor& buffer) const {
  const size_t p = bucket.parameters[position];
  const at::Tensor& parameter = shapes_[p];
  const int64_t first = collectives_.rank * bucket.part, begin = bucket.begins[position];
  const int64_t from = std::clamp(begin - first, int64_t{0}, bucket.part);
  const int64_t to = std::clamp(begin + parameter.numel() - first, from, bucket.part);
  const bool is_all = to - from == parameter.numel();
  if (!is_whole_[p]) return buffer.narrow(0, from, to - from);
  std::vector<int64_t> sizes = parameter.sizes().vec();
  if (!is_all) sizes.front() = 0;
  return buffer.as_strided(sizes, parameter.strides(), buffer.storage_offset() + from);
}

size_t ParameterShards::index_of_part(const at::Tensor& part) const {
  const auto found =
      std::find_if(parts_.begin(), parts_.end(), [&](const at::Tensor& one) { return one.is_same(part); });
  TORCH_CHECK_INDEX(found != parts_.end(), "the tensor is not a part of a parameter");
  return static_cast<size_t>(found - parts_.begin());
}

bool ParameterShards::is_part(const at::Tensor& tensor) const {
  return std::any_of(parts_.begin(), parts_.end(), [&](const at::Tensor& one) { return one.is_same(tensor); });
}

bool ParameterShards::fits(const at::Tensor& part, const at::Tensor& whole) const {
  return whole.sizes() == parameters_[index_of_part(part)].sizes();
}

/// Number of the first element that belongs to `rank`, or to a later one, in the order of the parameter's memory.
int64_t ParameterShards::first_number(size_t parameter, int64_t rank) const {
  const auto& [number, position] = places_[parameter];
  const Bucket& bucket = buckets_[number];
  return std::clamp(rank * bucket.part - bucket.begins[position], int64_t{0}, shapes_[parameter].numel());
}

std::vector<int64_t> ParameterShards::cuts(const at::Tensor& part) const {
  std::vector<int64_t> cuts;
  for (int64_t rank = 0; rank <= collectives_.ranks; ++rank) cuts.push_back(first_number(index_of_part(part), rank));
  return cuts;
}

at::Tensor ParameterShards::part_of(const at::Tensor& part, const at::Tensor& whole) const {
  const size_t p = index_of_part(part);
  const at::Tensor& parameter = parameters_[p];
  TORCH_CHECK_VALUE(whole.sizes() == parameter.sizes(), "expected a tensor of the parameter's shape");
  const at::Tensor flat = at::empty({parameter.numel()}, whole.options());
  flat.as_strided(parameter.sizes(), parameter.strides()).copy_(whole);
  return flat.narrow(0, first_number(p, collectives_.rank), part.numel()).view(part.sizes());
}

at::Tensor ParameterShards::make_whole(const at::Tensor& part, at::ScalarType type) const {
  const at::Tensor& shape = shapes_[index_of_part(part)];
  return at::empty_strided(shape.sizes(), shape.strides(), type);
}

void ParameterShards::put(const at::Tensor& part, const at::Tensor& numbers, const at::Tensor& whole) const {
  const at::NoGradGuard no_grad;
  if (numbers.numel() == 0) return;
  const size_t p = index_of_part(part);
  if (is_whole_[p]) return void(whole.copy_(numbers));
  const at::Tensor flat = whole.as_strided({whole.numel()}, {1});
  flat.narrow(0, first_number(p, collectives_.rank), numbers.numel()).copy_(numbers);
}

std::vector<at::Tensor> ParameterShards::gather(const std::vector<std::pair<at::Tensor, at::Tensor>>& parts) const {
  const at::NoGradGuard no_grad;
  // A bucket is sent once per tensor of a parameter: {bucket, n-th tensor of the parameter} -> pairs.
  std::map<std::pair<size_t, size_t>, std::vector<size_t>> messages;
  std::vector<size_t> tensors(parts_.size()), positions;
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t p = index_of_part(parts[i].first);
    messages[{places_[p].first, tensors[p]++}].push_back(i);
    positions.push_back(places_[p].second);
  }
  std::vector<at::Tensor> whole(parts.size());
  for (const auto& [message, members] : messages) {
    const Bucket& bucket = buckets_[message.first];
    const at::Tensor own = at::zeros({bucket.part}, parts[members.front()].second.scalar_type());
    for (const size_t i : members) {
      TORCH_CHECK(parts[i].second.scalar_type() == own.scalar_type(), "tensors of a bucket have several dtypes");
      cut(bucket, positions[i], own).copy_(parts[i].second);
    }
    const at::Tensor all = collectives_.gather_on_host(own);
    if (!all.defined()) continue;
    for (const size_t i : members) whole[i] = view(bucket, positions[i], all);
  }
  return whole;
}

void ParameterShards::begin(bool reduces, DeviceReplicator::OnSent on_sent) {
  is_active_ = true;
  reduces_ = reduces;
  on_sent_ = std::move(on_sent);
  sent_ = received_ = 0;
  completed_.clear();
  std::fill(is_computed_.begin(), is_computed_.end(), 0);
  for (Bucket& bucket : buckets_) {
    bucket.missing = bucket.parameters.size();
    bucket.is_sent = false;
    bucket.is_gathering = false;  // of an update that failed
    bucket.gathering = nullptr;
  }
}

/// Called when a gradient of a parameter has been accumulated.
void ParameterShards::note_gradient(size_t parameter) {
  if (!is_active_) return;
  const at::NoGradGuard no_grad;
  const size_t number = places_[parameter].first;
  Bucket& bucket = buckets_[number];
  TORCH_CHECK_VALUE(!bucket.is_sent,
                    "sharding: a parameter received another gradient in one backward after its bucket had been sent; "
                    "several checkpointed segments of the model must not share a parameter");
  has_gradient_[parameter] = 1;
  if (sharding_ == Sharding::kOptimizer) put_in_bucket(parameter);
  if (!reduces_ || std::exchange(is_computed_[parameter], 1)) return;
  if (--bucket.missing == 0) completed_.push_back(number);
  while (sent_ < order_.size() && buckets_[order_[sent_]].missing == 0) send_next(/*contribute=*/true);
  // The exchange of agree_on_order() comes first on every rank, also on one that has no loss and calls nothing here.
  if (sent_ == order_.size() && is_order_known_ && on_sent_) std::exchange(on_sent_, nullptr)();
}

/// Makes the gradient of a parameter a view of its bucket.
void ParameterShards::put_in_bucket(size_t parameter) {
  at::Tensor& gradient = parameters_[parameter].mutable_grad();
  const at::Tensor& place = gradient_places_[parameter];
  if (gradient.const_data_ptr() == place.const_data_ptr()) return;
  at::Tensor(place).copy_(gradient);
  gradient = place;
}

/// Copies the gradients of a bucket into its memory; zeros for those that are missing.
void ParameterShards::fill(const Bucket& bucket) {
  std::vector<at::Tensor> places, gradients;  // to copy together
  for (size_t i = 0; i < bucket.parameters.size(); ++i) {
    const size_t p = bucket.parameters[i];
    at::Tensor& gradient = parameters_[p].mutable_grad();
    const at::Tensor place = gradient_places_[p].defined() ? gradient_places_[p] : view(bucket, i, bucket.gradients);
    if (!gradient.defined()) {
      at::Tensor(place).zero_();
    } else if (gradient.const_data_ptr() != place.const_data_ptr()) {
      places.push_back(place);
      gradients.push_back(gradient);
    }
    if (sharding_ == Sharding::kGradients) gradient.reset();
  }
  if (!places.empty()) at::_foreach_copy_(places, gradients);
}

/// Starts the reduction of the next bucket.
void ParameterShards::send_next(bool contribute) {
  Bucket& bucket = buckets_[order_[sent_]];
  if (sharding_ == Sharding::kGradients) {
    if (sent_ - received_ >= kMostPending) receive_next();
    bucket.gradients = at::empty_like(bucket.weights);
  }
  ++sent_;
  bucket.is_sent = true;
  if (contribute) {
    fill(bucket);
  } else {
    bucket.gradients.zero_();
  }
  const auto type = wire_type(compression_, bucket.gradients);
  bucket.sent = type ? bucket.gradients.to(*type) : bucket.gradients;
  bucket.work = collectives_.reduce_scatter(bucket.sent);
}

/// Waits for the oldest bucket that was sent.
void ParameterShards::receive_next() {
  const size_t number = order_[received_++];
  Bucket& bucket = buckets_[number];
  collectives_.wait(std::exchange(bucket.work, nullptr), "reducescatter(bucket " + std::to_string(number) + ")");
  const at::Tensor sum = own_part(bucket, std::exchange(bucket.sent, at::Tensor()));
  if (sum.const_data_ptr() != bucket.own.const_data_ptr()) {
    is_summed_ ? bucket.own.add_(sum) : bucket.own.copy_(sum);
  }
  if (sharding_ == Sharding::kGradients) bucket.gradients.reset();
}

void ParameterShards::receive_all() {
  const ProfileStage stage("wait for gradients of other ranks");
  while (received_ < sent_) receive_next();
}

/// Takes over the order in which rank 0 completed its buckets; buckets that it did not complete come last. If it
/// completed none, as it had no rows, the ranks try again after the next reduction.
void ParameterShards::agree_on_order() {
  at::Tensor turns = at::zeros({static_cast<int64_t>(buckets_.size())}, at::kDouble);
  for (size_t i = 0; collectives_.rank == 0 && i < completed_.size(); ++i) {
    turns[static_cast<int64_t>(completed_[i])] = static_cast<double>(i + 1);
  }
  turns = turns.to(buckets_.front().weights.device());
  collectives_.all_reduce(turns);
  turns = turns.to(at::kCPU);
  if (!turns.any().item<bool>()) return;
  const auto turn_of = [&](size_t bucket) {
    const double turn = turns.const_data_ptr<double>()[bucket];
    return turn > 0 ? turn : static_cast<double>(buckets_.size() + 1);
  };
  std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return turn_of(a) < turn_of(b); });
  is_order_known_ = true;
}

void ParameterShards::end(bool contribute) {
  if (!is_active_) return;
  const at::NoGradGuard no_grad;
  is_active_ = false;
  if (!reduces_) return;
  while (sent_ < order_.size()) send_next(contribute);
  receive_all();
  if (!is_order_known_) agree_on_order();
  is_summed_ = true;
  for (size_t p = 0; p < parts_.size(); ++p) parts_[p].mutable_grad() = part_gradients_[p];
}

std::optional<size_t> ParameterShards::without_gradient() const {
  const auto missing = std::find(has_gradient_.begin(), has_gradient_.end(), 0);
  return missing == has_gradient_.end() ? std::nullopt : std::optional<size_t>(missing - has_gradient_.begin());
}

void ParameterShards::release_gradients() {
  is_active_ = is_summed_ = false;
  std::fill(has_gradient_.begin(), has_gradient_.end(), 0);
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  for (const at::Tensor& part : parts_) part.mutable_grad().reset();
  for (Bucket& bucket : buckets_) {  // of a run that failed
    bucket.work = nullptr;
    bucket.sent.reset();
    if (sharding_ == Sharding::kGradients) bucket.gradients.reset();
  }
}

std::vector<at::Tensor> ParameterShards::gradient_memory() const {
  std::vector<at::Tensor> memory;
  for (const Bucket& bucket : buckets_) {
    memory.push_back(sharding_ == Sharding::kOptimizer ? bucket.gradients : bucket.own);
  }
  return memory;
}

void ParameterShards::start_gathering(size_t bucket) {
  if (std::exchange(buckets_[bucket].is_gathering, true)) return;
  const at::NoGradGuard no_grad;
  const ExchangeScope sending;
  buckets_[bucket].gathering = collectives_.all_gather(buckets_[bucket].weights);
}

void ParameterShards::start_gathering() {
  for (size_t number = 0; number < buckets_.size(); ++number) start_gathering(number);
}

void ParameterShards::finish_gathering() {
  for (size_t number = 0; number < buckets_.size(); ++number) {
    Bucket& bucket = buckets_[number];
    bucket.is_gathering = false;
    collectives_.wait(std::exchange(bucket.gathering, nullptr), "allgather(weights " + std::to_string(number) + ")");
  }
}

void ParameterShards::gather_weights() {
  const ProfileStage stage("gather weights");
  start_gathering();
  finish_gathering();
}

}  // namespace trainkit::detail
