#include "rl/rollout_rows.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "rl/advantage_scan.h"
#include "trainkit/core/error.h"

namespace trainkit::detail {
namespace {

constexpr char kFile[] = "rollout";

std::vector<int64_t> with(std::vector<int64_t> first, const std::vector<int64_t>& shape) {
  first.insert(first.end(), shape.begin(), shape.end());
  return first;
}

std::vector<FieldSpec> with_own_fields(std::vector<FieldSpec> fields) {
  for (const char* name : {"value", "advantage", "return"}) fields.push_back({name, at::kFloat, {}});
  return fields;
}

void check_outcome(const at::Tensor& tensor, const char* name, at::ScalarType dtype, int64_t simulators) {
  TORCH_CHECK_VALUE(tensor.defined() && tensor.is_cpu() && tensor.scalar_type() == dtype &&
                        tensor.sizes() == at::IntArrayRef({simulators}),
                    "StepOutcome: ", name, " must be ", dtype, " (", simulators, ") on the CPU");
}

/// Copies `from` to row `row` of `to`, which has as many elements.
void copy_row(const at::Tensor& from, const at::Tensor& to, int64_t row) {
  if (from.is_cpu() && to.is_cpu() && from.is_contiguous()) {  // a tenth of the time of copy_() for small rows
    const size_t bytes = from.nbytes();
    std::memcpy(static_cast<std::byte*>(to.mutable_data_ptr()) + row * static_cast<int64_t>(bytes),
                from.const_data_ptr(), bytes);
  } else {
    to.select(0, row).view(from.sizes()).copy_(from, /*non_blocking=*/true);
  }
}

}  // namespace

RolloutRows::RolloutRows(std::vector<FieldSpec> fields, RolloutOptions options)
    : options_(std::move(options)), fields_(with_own_fields(std::move(fields))), episodes_(options_.simulators) {
  auto observed = std::make_shared<std::vector<FieldSpec>>();
  for (const std::string& name : options_.observations) {
    observations_.push_back(index_of(name));
    observed->push_back(fields_[observations_.back()]);
  }
  observation_fields_ = observed;
  finals_.resize(observations_.size());
  const std::vector<int64_t> size = {options_.horizon, options_.simulators};
  tensors_.resize(fields_.size());
  begin();
  reward_ = at::empty(size, at::kFloat);
  terminated_ = at::empty(size, at::kBool);
  truncated_ = at::empty(size, at::kBool);
  next_value_ = at::empty(size, at::TensorOptions(at::kFloat).device(options_.device));
}

size_t RolloutRows::index_of(std::string_view name) const {
  const auto found =
      std::find_if(fields_.begin(), fields_.end(), [&](const FieldSpec& field) { return field.name == name; });
  TORCH_CHECK_INDEX(found != fields_.end(), "the rollout has no field '", name, "'");
  return static_cast<size_t>(found - fields_.begin());
}

/// Begins a rollout. Rows that someone else holds, as the writer of a checkpoint, stay his.
void RolloutRows::begin() {
  for (size_t f = 0; f < fields_.size(); ++f) {
    at::Tensor& tensor = tensors_[f];
    if (tensor.defined() && tensor.getIntrusivePtr().is_uniquely_owned() && tensor.storage().use_count() == 1) continue;
    tensor = at::empty(with({options_.horizon, options_.simulators}, fields_[f].shape),
                       at::TensorOptions(fields_[f].dtype).device(options_.device));
  }
  for (auto& tensors : finals_) tensors.clear();
  final_rows_.clear();
  episodes_.begin();
}

/// Copies the rows of a step.
void RolloutRows::copy_step(const at::Tensor& from, size_t field, const char* what) {
  const FieldSpec& spec = fields_[field];
  TORCH_CHECK_VALUE(
      from.defined() && from.scalar_type() == spec.dtype &&
          from.numel() == options_.simulators * (tensors_[field].numel() /
                                                 std::max<int64_t>(1, options_.horizon * options_.simulators)) &&
          from.dim() >= 1 && from.size(0) == options_.simulators,
      "RolloutBuffer: ", what, " of '", spec.name, "' must be ", spec.dtype, " ",
      at::IntArrayRef(with({options_.simulators}, spec.shape)), ", got ",
      from.defined() ? from.sizes() : at::IntArrayRef());
  copy_row(from, tensors_[field], step_);
}

void RolloutRows::add(const std::vector<at::Tensor>& rows, const at::Tensor& value) {
  TORCH_CHECK_VALUE(!awaits_outcome_, "RolloutBuffer: add_outcome() must follow add()");
  TORCH_CHECK_VALUE(step_ < options_.horizon, "RolloutBuffer: the rollout is full");
  const size_t own = fields_.size() - 3;
  TORCH_CHECK_VALUE(rows.size() == own, "RolloutBuffer: expected ", own, " tensors, got ", rows.size());
  const at::NoGradGuard no_grad;
  if (step_ == 0) begin();
  for (size_t f = 0; f < own; ++f) copy_step(rows[f], f, "rows");
  copy_step(value.detach(), own, "values");
  awaits_outcome_ = true;
}

void RolloutRows::add_outcome(const StepOutcome& outcome) {
  TORCH_CHECK_VALUE(awaits_outcome_, "RolloutBuffer: add_outcome() must follow add()");
  const int64_t simulators = options_.simulators;
  check_outcome(outcome.reward, "reward", at::kFloat, simulators);
  check_outcome(outcome.terminated, "terminated", at::kBool, simulators);
  check_outcome(outcome.truncated, "truncated", at::kBool, simulators);
  const at::NoGradGuard no_grad;
  copy_row(outcome.reward, reward_, step_);
  copy_row(outcome.terminated, terminated_, step_);
  copy_row(outcome.truncated, truncated_, step_);
  const bool* terminated = terminated_.const_data_ptr<bool>() + step_ * simulators;
  const bool* truncated = truncated_.const_data_ptr<bool>() + step_ * simulators;
  std::vector<int64_t> ended;
  for (int64_t i = 0; i < simulators; ++i) {
    if (truncated[i] && !terminated[i]) ended.push_back(i);
  }
  if (!ended.empty()) {
    TORCH_CHECK_VALUE(outcome.final_observations.size() == observations_.size(),
                      "StepOutcome: final_observations needs one tensor per field of RolloutOptions::observations");
    for (size_t o = 0; o < observations_.size(); ++o) {
      const at::Tensor& observed = outcome.final_observations[o];
      const FieldSpec& spec = (*observation_fields_)[o];
      TORCH_CHECK_VALUE(
          observed.sizes() == at::IntArrayRef(with({simulators}, spec.shape)) && observed.scalar_type() == spec.dtype,
          "StepOutcome: final_observations of '", spec.name, "' must be ", spec.dtype, " ",
          at::IntArrayRef(with({simulators}, spec.shape)));
      finals_[o].push_back(
          observed.index_select(0, at::tensor(ended, at::kLong).to(observed.device())).to(options_.device));
    }
    for (const int64_t i : ended) final_rows_.push_back(step_ * simulators + i);
  }
  episodes_.add(reward_.const_data_ptr<float>() + step_ * simulators, terminated, truncated);
  ++step_;
  awaits_outcome_ = false;
}

/// Sets the values of the observations after each step.
void RolloutRows::set_next_values(const std::vector<at::Tensor>& next_observations,
                                  const RolloutBuffer::ValueFunction& value) {
  TORCH_CHECK_VALUE(next_observations.size() == observations_.size(),
                    "RolloutBuffer: finish() needs one tensor per field of RolloutOptions::observations");
  std::vector<at::Tensor> rows;
  for (size_t o = 0; o < observations_.size(); ++o) {
    std::vector<at::Tensor> parts = {next_observations[o].to(options_.device)};
    parts.insert(parts.end(), finals_[o].begin(), finals_[o].end());
    rows.push_back(at::cat(parts));
  }
  const Batch batch(observation_fields_, std::move(rows));
  const at::Tensor values = value(batch);
  TORCH_CHECK_VALUE(values.defined() && values.numel() == batch.size(),
                    "RolloutBuffer: the value function must return ", batch.size(), " values");
  const at::Tensor flat = values.detach().reshape({-1}).to(at::TensorOptions(at::kFloat).device(options_.device));
  const at::Tensor& recorded = tensors_[fields_.size() - 3];
  next_value_.slice(0, 0, options_.horizon - 1).copy_(recorded.slice(0, 1));
  next_value_.select(0, options_.horizon - 1).copy_(flat.slice(0, 0, options_.simulators));
  if (final_rows_.empty()) return;
  next_value_.view({-1}).index_copy_(0, at::tensor(final_rows_, at::kLong).to(options_.device),
                                     flat.slice(0, options_.simulators));
}

void RolloutRows::finish(const std::vector<at::Tensor>& next_observations, const RolloutBuffer::ValueFunction& value) {
  const at::NoGradGuard no_grad;
  set_next_values(next_observations, value);
  const size_t first = fields_.size() - 3;  // of the own fields
  const auto on_device = [&](const at::Tensor& tensor) { return tensor.to(options_.device); };
  gae_into({.reward = on_device(reward_),
            .value = tensors_[first],
            .next_value = next_value_,
            .terminated = on_device(terminated_),
            .truncated = on_device(truncated_)},
           options_.gae, {tensors_[first + 1], tensors_[first + 2]});
  step_ = 0;
}

PendingFile RolloutRows::file() const {
  PendingFile file{.name = kFile, .bytes = 0, .write = nullptr};
  std::vector<at::Tensor> rows;
  for (const at::Tensor& tensor : tensors_) {
    rows.push_back(tensor.cpu());
    file.bytes += static_cast<int64_t>(tensor.nbytes());
  }
  file.write = [rows = std::move(rows)](WritableFile& out) mutable -> absl::Status {
    for (const at::Tensor& tensor : rows)
      TRAINKIT_RETURN_IF_ERROR(out.append(tensor.const_data_ptr(), tensor.nbytes()));
    return absl::OkStatus();
  };
  return file;
}

absl::Status RolloutRows::load(const ReadableFile& file) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors_) bytes += static_cast<int64_t>(tensor.nbytes());
  if (file.size_bytes() != bytes) {
    return to_status({.exit_code = ExitCode::kWeights,
                      .id = "ckpt.source",
                      .where = file.path(),
                      .problem = "is a rollout of another size or of other fields",
                      .got = std::to_string(file.size_bytes()) + " bytes",
                      .expected = std::to_string(bytes)},
                     absl::StatusCode::kInvalidArgument);
  }
  int64_t at = 0;
  for (const at::Tensor& tensor : tensors_) {
    const at::Tensor on_host = at::empty(tensor.sizes(), tensor.dtype());
    TRAINKIT_RETURN_IF_ERROR(file.read_at(at, on_host.mutable_data_ptr(), on_host.nbytes()));
    tensor.copy_(on_host);
    at += static_cast<int64_t>(on_host.nbytes());
  }
  return absl::OkStatus();
}

}  // namespace trainkit::detail
