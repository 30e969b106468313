#include "train/graph/step_graphs.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace trainkit::detail {
namespace {

constexpr int64_t kScalarBytes = 16;

at::Tensor scalar_at(const at::Tensor& bytes, size_t i, at::ScalarType type, at::IntArrayRef sizes) {
  const auto size = static_cast<int64_t>(c10::elementSize(type));
  return bytes.narrow(0, static_cast<int64_t>(i) * kScalarBytes, size).view(type).view(sizes);
}

}  // namespace

void ScalarPack::pack(const std::vector<at::Tensor>& scalars, at::Device device) {
  for (const at::Tensor& scalar : scalars) {
    if (!scalar.defined()) {
      scalars_.emplace_back();
      continue;
    }
    TORCH_CHECK_VALUE(scalar.numel() == 1, "a metric has shape ", scalar.sizes(), ", expected a scalar");
    TORCH_CHECK_VALUE(scalar.device().type() == device.type(), "a metric is on ", scalar.device(), ", not on ", device);
    scalars_.push_back({true, scalar.scalar_type(), scalar.sizes().vec()});
  }
  bytes_ = at::zeros({static_cast<int64_t>(scalars.size()) * kScalarBytes}, at::device(device).dtype(at::kByte));
  for (size_t i = 0; i < scalars.size(); ++i) {
    if (scalars[i].defined()) scalar_at(bytes_, i, scalars_[i].type, scalars_[i].sizes).copy_(scalars[i]);
  }
}

void ScalarPack::make_room() {
  if (!room_.defined()) room_ = at::empty_like(bytes_);
}

std::vector<at::Tensor> ScalarPack::unpack() {
  make_room();
  const at::Tensor bytes = std::exchange(room_, {}).copy_(bytes_);
  std::vector<at::Tensor> scalars;
  for (size_t i = 0; i < scalars_.size(); ++i) {
    const Scalar& scalar = scalars_[i];
    scalars.push_back(scalar.defined ? scalar_at(bytes, i, scalar.type, scalar.sizes) : at::Tensor());
  }
  return scalars;
}

StepGraphs::StepGraphs(std::unique_ptr<GraphBackend> backend, const StepGraphLimits& limits)
    : backend_(std::move(backend)), limits_(limits) {}

StepGraph* StepGraphs::find(const StepKey& key) const {
  const auto found = std::find_if(kinds_.begin(), kinds_.end(), [&](const auto& kind) { return kind->key == key; });
  return found == kinds_.end() ? nullptr : found->get();
}

StepGraph& StepGraphs::entry(const StepKey& key) {
  if (StepGraph* const found = find(key)) return *found;
  if (kinds_.size() < limits_.kinds) {
    kinds_.push_back(std::make_unique<StepGraph>());
  } else {
    ++displaced_;
    const auto oldest = std::min_element(kinds_.begin(), kinds_.end(),
                                         [](const auto& a, const auto& b) { return a->last_use < b->last_use; });
    std::iter_swap(oldest, std::prev(kinds_.end()));
    kinds_.back() = std::make_unique<StepGraph>();
  }
  kinds_.back()->key = key;
  return *kinds_.back();
}

// Note [Life of a captured step]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A graph replays addresses and host values of its capture, so a step may be captured only if every later step would
// request the same operations with the same numbers. next() moves each kind of step (a StepKey) through these states:
// - kWarmUp, once (twice with several replicas or ranks, whose buckets are arranged in the second step): libraries
// allocate their workspaces, autotuners run, lazily created tensors appear.
// - kTrace: the step runs eagerly and its operations are recorded. traced() compares the record with the previous one
//   of the same kind. Two equal records make the kind steady; an obstacle (a read from the device) ends captures for
//   good.
// - kCapture, then kReplay. Every check_every steps a kTrace step runs in between and is compared with the record of
//   the capture; a difference ends captures, since the graph has been computing with an outdated value.
// Two loops would cost more than they gain and are given up: kinds that replace each other before their graphs are used
// (batches of ever-changing shapes, temporary loss functions), and graphs that forget() drops again and again because
// weights or optimizer state move. Both limits are relative to the number of replayed steps.

void StepGraphs::use(StepGraph& kind) {
  current_ = &kind;
  kind.previous_use = std::exchange(kind.last_use, ++clock_);
}

StepGraphs::Action StepGraphs::next(const StepKey& key) {
  if (!active()) return Action::kEager;
  use(entry(key));
  if (displaced_ > limits_.patience && displaced_ > steps_ / 4) {
    give_up("batches have too many different shapes, or each step has a new loss function");
    return Action::kEager;
  }
  if (current_->graph) {
    if (++current_->since_check <= limits_.check_every) return Action::kReplay;
    current_->since_check = 0;
    reason_ = "periodic comparison with the captured step";
    return Action::kTrace;
  }
  reason_ = "warm-up for batches of these shapes";
  if (current_->seen++ < limits_.warm_up) return Action::kWarmUp;
  return current_->steady ? Action::kCapture : Action::kTrace;
}

StepGraphs::Action StepGraphs::next_of_steady(const StepKey& key) {
  if (!active()) return Action::kEager;
  const bool is_known = find(key) != nullptr;
  if (!is_known && kinds_.size() == limits_.kinds) {
    ++clock_;
  } else {
    use(entry(key));
    if (current_->graph) ++current_->since_check;
    if (current_->graph || current_->steady) return current_->graph ? Action::kReplay : Action::kCapture;
  }
  reason_ = "batches of these shapes are rare";
  return Action::kEager;
}

bool StepGraphs::are_steady() const {
  const auto must_wait = [&](const auto& kind) {
    const bool is_often = kind->previous_use > 0 && clock_ - kind->previous_use < limits_.often;
    return kind->graph ? kind->since_check >= limits_.check_every : !kind->steady && is_often;
  };
  const auto is_steady = [](const auto& kind) { return kind->graph || kind->steady; };
  return active() && std::any_of(kinds_.begin(), kinds_.end(), is_steady) &&
         std::none_of(kinds_.begin(), kinds_.end(), must_wait);
}

void StepGraphs::traced(StepRecord record) {
  if (!record.obstacle.empty()) return give_up("a step cannot be captured: " + record.obstacle);
  const std::string changed = difference(current_->record, record);
  const bool first = current_->record.operations.empty();
  if (!changed.empty() && !first && (current_->graph || current_->seen > limits_.patience)) {
    return give_up("steps differ: " + changed);
  }
  current_->steady = changed.empty();
  current_->record = std::move(record);
}

void StepGraphs::captured(std::unique_ptr<GraphBackend::Graph> graph) {
  current_->graph = std::move(graph);
  ++captures_;
}

void StepGraphs::replayed() {
  ++steps_;
  reason_.clear();
}

bool StepGraphs::holds_any() const {
  return std::any_of(kinds_.begin(), kinds_.end(), [](const auto& kind) { return kind->graph != nullptr; });
}

void StepGraphs::forget() {
  if (++forgotten_ > limits_.patience && forgotten_ > steps_ / 4) {
    return give_up("weights, optimizer state or gradients of captured steps change too often");
  }
  kinds_.clear();
  current_ = nullptr;
  reason_ = "captured again: weights, optimizer state or gradients of the captured step have changed";
}

void StepGraphs::give_up(std::string reason) {
  kinds_.clear();
  current_ = nullptr;
  active_ = false;
  reason_ = std::move(reason);
}

}  // namespace trainkit::detail
