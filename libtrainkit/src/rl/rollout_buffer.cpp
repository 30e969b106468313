#include "trainkit/rl/rollout_buffer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/option_problems.h"
#include "core/base/user_exception.h"
#include "data/loader/stop_reason.h"
#include "data/order/permutation.h"
#include "rl/batch_slots.h"
#include "rl/rollout_rows.h"
#include "rl/row_gather.h"
#include "trainkit/core/error.h"
#include "trainkit/core/random.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

/// Gives `values` mean 0 and standard deviation 1.
void normalize(float* values, int64_t count) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(values[i]);
  const double mean = sum / static_cast<double>(count);
  for (int64_t i = 0; i < count; ++i) {
    const double difference = static_cast<double>(values[i]) - mean;
    squares += difference * difference;
  }
  const double scale = 1 / (std::sqrt(squares / static_cast<double>(std::max<int64_t>(1, count - 1))) + 1e-8);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>((static_cast<double>(values[i]) - mean) * scale);
  }
}

absl::Status wrong_options(const std::string& problem) {
  return to_status({.exit_code = ExitCode::kUsage, .id = "data.options", .field = "RolloutOptions", .problem = problem},
                   absl::StatusCode::kInvalidArgument);
}

}  // namespace

class RolloutBuffer::Impl {
 public:
  Impl(std::vector<FieldSpec> fields, const RolloutOptions& options)
      : options_(options),
        rows_(std::move(fields), options),
        shared_fields_(std::make_shared<const std::vector<FieldSpec>>(rows_.fields())),
        batches_(rows_.fields(), options.batch_size),
        drawn_(static_cast<size_t>(options.batch_size)) {}

  detail::RolloutRows& rows() { return rows_; }
  void collect_with(Collect collect) { collect_ = std::move(collect); }
  int64_t epoch_length() const { return options_.epochs * rows_per_rollout() / options_.batch_size; }
  int64_t epoch() const { return epoch_; }
  int64_t position() const { return position_; }
  const std::map<std::string, double>& metrics() const { return metrics_; }

  /// Whether rows are to be trained on; a new rollout would overwrite them.
  bool has_rows() const { return finished_ > epoch_ + (position_ == epoch_length() ? 1 : 0); }
  absl::Status finish(const std::vector<at::Tensor>& next_observations, const ValueFunction& value);
  absl::StatusOr<std::optional<Batch>> next(RolloutBuffer& self);
  void stop(absl::Status reason) { stopped_.set(std::move(reason)); }

  StateDict state_dict() const;
  absl::Status load_state_dict(const StateDict& state);
  std::vector<PendingFile> files() const;
  absl::Status load_files(const std::map<std::string, ReadableFile>& files);

 private:
  int64_t rows_per_rollout() const { return options_.horizon * options_.simulators; }
  absl::Status collect(RolloutBuffer& self);
  void draw();
  Batch batch_on_cpu();
  Batch batch_on_device();

  const RolloutOptions options_;
  detail::RolloutRows rows_;
  const std::shared_ptr<const std::vector<FieldSpec>> shared_fields_;
  detail::BatchSlots batches_;
  std::vector<int64_t> drawn_;  // rows of a batch
  Collect collect_;
  std::map<std::string, double> metrics_;  // of the last rollout
  int64_t finished_ = 0;                   // rollouts; one more than epoch_ while one is trained on
  int64_t epoch_ = 0, position_ = 0;
  detail::StopReason stopped_;
};

absl::Status RolloutBuffer::Impl::finish(const std::vector<at::Tensor>& next_observations, const ValueFunction& value) {
  if (!rows_.is_full()) return absl::FailedPreconditionError("finish() needs a full rollout: see is_full()");
  rows_.finish(next_observations, value);
  metrics_ = rows_.episodes().metrics();
  ++finished_;
  return absl::OkStatus();
}

absl::Status RolloutBuffer::Impl::collect(RolloutBuffer& self) {
  if (!collect_) {
    return absl::FailedPreconditionError(
        "all rows of the rollout are used: fill and finish() the next one, or call collect_with() before");
  }
  const at::NoGradGuard no_grad;
  try {
    TRAINKIT_RETURN_IF_ERROR(collect_(self));
  } catch (...) {
    return detail::status_from_user_exception(fmt::format("rollout {}", finished_ + 1), "collecting");
  }
  return has_rows() ? absl::OkStatus()
                    : absl::FailedPreconditionError("the function of collect_with() returned without finish()");
}

/// Sets the rows of the next batch, see RolloutBuffer.
void RolloutBuffer::Impl::draw() {
  const int64_t per_pass = rows_per_rollout() / options_.batch_size;
  const KeyedPermutation order(rows_per_rollout(), hash_key(options_.seed, epoch_, position_ / per_pass));
  order.fill(position_ % per_pass * options_.batch_size, 1, drawn_);
}

Batch RolloutBuffer::Impl::batch_on_cpu() {
  detail::Slot& slot = batches_.next();
  const BatchView view = slot.view();
  for (size_t f = 0; f < rows_.fields().size(); ++f) {
    const auto* table = static_cast<const std::byte*>(rows_.tensors()[f].const_data_ptr());
    detail::gather_rows(table, view.row_bytes(f), drawn_, view.data(f));
  }
  const size_t advantage = rows_.fields().size() - 2;
  if (options_.normalize_advantage) normalize(view.row<float>(advantage, 0), options_.batch_size);
  slot.row_indices().assign(drawn_.begin(), drawn_.end());
  for (int64_t& row : slot.row_indices()) row += epoch_ * rows_per_rollout();
  return slot.lend(options_.batch_size, /*padding_rows=*/0);
}

Batch RolloutBuffer::Impl::batch_on_device() {
  const at::NoGradGuard no_grad;
  const at::Tensor index =
      at::from_blob(drawn_.data(), {options_.batch_size}, at::kLong).to(options_.device);  // waits: drawn_ is reused
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& tensor : rows_.tensors()) tensors.push_back(tensor.flatten(0, 1).index_select(0, index));
  at::Tensor& advantage = tensors[tensors.size() - 2];
  if (options_.normalize_advantage) advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8);
  std::vector<int64_t> numbers = drawn_;
  for (int64_t& row : numbers) row += epoch_ * rows_per_rollout();
  return Batch(shared_fields_, std::move(tensors), std::move(numbers));
}

absl::StatusOr<std::optional<Batch>> RolloutBuffer::Impl::next(RolloutBuffer& self) {
  TRAINKIT_RETURN_IF_ERROR(stopped_.get());
  if (position_ == epoch_length()) {
    position_ = 0;
    ++epoch_;
    return std::nullopt;
  }
  if (!has_rows()) TRAINKIT_RETURN_IF_ERROR(collect(self));
  TRAINKIT_RETURN_IF_ERROR(stopped_.get());
  draw();
  ++position_;
  return options_.device.is_cpu() ? batch_on_cpu() : batch_on_device();
}

StateDict RolloutBuffer::Impl::state_dict() const {
  StateDict state = {{"rollout", finished_}, {"epoch", epoch_}, {"position", position_}, {"has_rows", has_rows()}};
  merge_state(state, "episodes", rows_.episodes().state_dict());
  for (const auto& [name, value] : metrics_) state["metrics." + name] = value;
  return state;
}

absl::Status RolloutBuffer::Impl::load_state_dict(const StateDict& state) {
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t finished, get_state<int64_t>(state, "rollout"));
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t epoch, get_state<int64_t>(state, "epoch"));
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t position, get_state<int64_t>(state, "position"));
  if (epoch < 0 || position < 0 || position > epoch_length() || finished < epoch || finished > epoch + 2) {
    return to_status({.exit_code = ExitCode::kWeights,
                      .id = "ckpt.source",
                      .field = "RolloutBuffer",
                      .problem = "the checkpoint has a rollout with other batches",
                      .got = fmt::format("batch {}", position),
                      .expected = fmt::format("at most {}", epoch_length())},
                     absl::StatusCode::kInvalidArgument);
  }
  TRAINKIT_RETURN_IF_ERROR(rows_.episodes().load_state_dict(sub_state(state, "episodes")));
  finished_ = finished;
  epoch_ = epoch;
  position_ = position;
  metrics_.clear();
  for (const auto& [name, value] : sub_state(state, "metrics")) metrics_[name] = std::get<double>(value);
  return absl::OkStatus();
}

std::vector<PendingFile> RolloutBuffer::Impl::files() const {
  std::vector<PendingFile> files;
  if (has_rows()) files.push_back(rows_.file());
  return files;
}

absl::Status RolloutBuffer::Impl::load_files(const std::map<std::string, ReadableFile>& files) {
  if (!has_rows()) return absl::OkStatus();
  if (files.size() == 1) return rows_.load(files.begin()->second);
  return to_status({.exit_code = ExitCode::kWeights,
                    .id = "ckpt.source",
                    .field = "RolloutBuffer",
                    .problem = "the checkpoint has no rows of a rollout"},
                   absl::StatusCode::kInvalidArgument);
}

absl::StatusOr<std::unique_ptr<RolloutBuffer>> RolloutBuffer::create(std::vector<FieldSpec> fields,
                                                                     const RolloutOptions& options) {
  detail::OptionProblems problems;
  const auto is_share = [](double value) { return value >= 0 && value <= 1; };
  problems.require(options.horizon >= 1, "horizon", ">= 1", options.horizon)
      .require(options.simulators >= 1, "simulators", ">= 1", options.simulators)
      .require(options.batch_size >= 1, "batch_size", ">= 1", options.batch_size)
      .require(options.epochs >= 1, "epochs", ">= 1", options.epochs)
      .require(is_share(options.gae.gamma), "gae.gamma", "in [0, 1]", options.gae.gamma)
      .require(is_share(options.gae.lambda), "gae.lambda", "in [0, 1]", options.gae.lambda)
      .require(!options.observations.empty(), "observations must name at least one field");
  for (const FieldSpec& field : fields) {
    const bool is_own = field.name == "value" || field.name == "advantage" || field.name == "return";
    problems.require(!is_own, "the field '" + field.name + "' belongs to the buffer");
  }
  for (const std::string& name : options.observations) {
    const auto has_name = [&](const FieldSpec& field) { return field.name == name; };
    problems.require(std::any_of(fields.begin(), fields.end(), has_name), "there is no field '" + name + "'");
  }
  if (!problems.empty()) return wrong_options(problems.text());
  if (options.horizon * options.simulators % options.batch_size != 0) {
    return wrong_options(fmt::format("batch_size must divide horizon * simulators = {}, got {}",
                                     options.horizon * options.simulators, options.batch_size));
  }
  return std::unique_ptr<RolloutBuffer>(new RolloutBuffer(std::make_unique<Impl>(std::move(fields), options)));
}

RolloutBuffer::RolloutBuffer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RolloutBuffer::~RolloutBuffer() = default;

void RolloutBuffer::collect_with(Collect collect) { impl_->collect_with(std::move(collect)); }
void RolloutBuffer::add(const std::vector<at::Tensor>& rows, const at::Tensor& value) {
  TORCH_CHECK_VALUE(!impl_->has_rows(), "RolloutBuffer: the rows of the last rollout are not used up yet");
  impl_->rows().add(rows, value);
}
void RolloutBuffer::add_outcome(const StepOutcome& outcome) { impl_->rows().add_outcome(outcome); }
bool RolloutBuffer::is_full() const { return impl_->rows().is_full(); }
absl::Status RolloutBuffer::finish(const std::vector<at::Tensor>& next_observations, const ValueFunction& value) {
  return impl_->finish(next_observations, value);
}
const at::Tensor& RolloutBuffer::field(std::string_view name) const { return impl_->rows().tensor(name); }
absl::StatusOr<std::optional<Batch>> RolloutBuffer::next() { return impl_->next(*this); }
const std::vector<FieldSpec>& RolloutBuffer::fields() const { return impl_->rows().fields(); }
std::optional<int64_t> RolloutBuffer::epoch_length() const { return impl_->epoch_length(); }
int64_t RolloutBuffer::epoch() const { return impl_->epoch(); }
int64_t RolloutBuffer::position() const { return impl_->position(); }
void RolloutBuffer::stop(absl::Status reason) { impl_->stop(std::move(reason)); }
std::map<std::string, double> RolloutBuffer::metrics() const { return impl_->metrics(); }
StateDict RolloutBuffer::state_dict() const { return impl_->state_dict(); }
absl::Status RolloutBuffer::load_state_dict(const StateDict& state) { return impl_->load_state_dict(state); }
std::vector<PendingFile> RolloutBuffer::files() { return impl_->files(); }
absl::Status RolloutBuffer::load_files(const std::map<std::string, ReadableFile>& files) {
  return impl_->load_files(files);
}

}  // namespace trainkit
