#include "made.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>
#include <cstring>
#include <set>
#include <span>
#include <thread>

#include "model.h"
#include "trainkit/core/random.h"
#include "trainkit/core/status.h"
#include "trainkit/rl/replay_buffer.h"
#include "trainkit/rl/rollout_buffer.h"

namespace trainkit::differential {
namespace {

void require(const absl::Status& status) {
  if (!status.ok()) throw absl::BadStatusOrAccess(status);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.sizes() == y.sizes() && x.dtype() == y.dtype() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

at::Tensor numbers(std::span<const int64_t> values) {
  return at::tensor(c10::IntArrayRef(values.data(), values.size()), at::kLong);
}

/// The rows of a program's data, by field.
class Table {
 public:
  explicit Table(const Spec& spec) {
    for (auto& [name, tensor] : outer_columns(spec)) {
      fields_.push_back({name, tensor.scalar_type(), tensor.sizes().slice(1).vec()});
      columns_.push_back(tensor.contiguous());
    }
  }
  const std::vector<FieldSpec>& fields() const { return fields_; }
  int64_t size() const { return columns_.front().size(0); }
  const at::Tensor& column(size_t field) const { return columns_[field]; }
  std::vector<at::Tensor> rows(const std::vector<int64_t>& indices) const {
    std::vector<at::Tensor> rows;
    for (const at::Tensor& column : columns_) rows.push_back(column.index_select(0, numbers(indices)));
    return rows;
  }

 private:
  std::vector<FieldSpec> fields_;
  std::vector<at::Tensor> columns_;
};

uint64_t seed_of(const Spec& spec, int64_t rank) { return hash_key(spec.seed, spec.number, 3, rank) >> 1; }

/// Rows that batch `k` needs, in whole numbers: samples_per_insert is drawn in quarters.
int64_t rows_needed(const Spec& spec, int64_t k, int64_t batch_size) {
  const auto quarters = static_cast<int64_t>(spec.buffer.samples_per_insert * 4);
  return spec.buffer.min_size + 4 * k * batch_size / quarters;
}

/// Appends row r of the table, again and again, as row r of the buffer; of several ranks each has its share.
class ReplayMaker final : public Maker {
 public:
  ReplayMaker(const Spec& spec, int64_t rank, int64_t ranks)
      : spec_(spec), rank_(rank), ranks_(ranks), batch_size_(spec.batch_size / ranks), table_(spec) {
    const BufferSpec& own = spec.buffer;
    // One thread that appends and steps needs room for the batches of a step.
    const int64_t in_step = rows_needed(spec, spec.accumulate, batch_size_) - own.min_size + 1;
    buffer_ = ReplayBuffer::create(table_.fields(), {.capacity = own.capacity,
                                                     .batch_size = batch_size_,
                                                     .min_size = own.min_size,
                                                     .samples_per_insert = own.samples_per_insert,
                                                     .ahead = own.append + in_step,
                                                     .seed = seed_of(spec, rank)})
                  .value();
  }
  ~ReplayMaker() override {
    buffer_->stop(absl::CancelledError("the run has ended"));
    if (appender_.joinable()) appender_.join();
  }

  BatchSource& buffer() override { return *buffer_; }
  void start() override {
    if (!spec_.buffer.thread) return;
    appender_ = std::thread([this] {
      while (append().ok()) {
      }
    });
  }
  void prepare(int64_t batches) override {
    if (spec_.buffer.thread) return;
    const int64_t needed = rows_needed(spec_, buffer_->batches() + batches - 1, batch_size_);
    while (buffer_->rows() < needed) require(append());
  }
  void check(const Batch& batch) override {
    const int64_t k = buffer_->batches() - 1;
    const std::vector<int64_t> expected = replay_draw(spec_, k, rank_, ranks_);
    const std::vector<int64_t> drawn(batch.row_indices().begin(), batch.row_indices().end());
    if (drawn != expected) return faults.push_back(fmt::format("batch {} has other rows than the rule says", k));
    const std::vector<at::Tensor> rows = table_.rows(in_table(expected));
    for (size_t f = 0; f < rows.size(); ++f) {
      if (same_bits(batch.tensors()[f], rows[f])) continue;
      faults.push_back(fmt::format("batch {} has rows with another '{}'", k, table_.fields()[f].name));
    }
  }

 private:
  std::vector<int64_t> in_table(std::vector<int64_t> rows) const {
    for (int64_t& row : rows) row = (row * ranks_ + rank_) % table_.size();
    return rows;
  }

  /// Appends the next rows. Which ones depends on the buffer alone, so that a resumed run appends the same.
  absl::Status append() {
    const int64_t begin = buffer_->rows(), count = spec_.buffer.append;
    if (spec_.buffer.gives_up && begin / count % 3 == 1) {
      TRAINKIT_ASSIGN_OR_RETURN(const ReplayRows given_up, buffer_->reserve(count));
      for (size_t f = 0; f < table_.fields().size(); ++f) {
        for (int64_t i = 0; i < count; ++i) std::memset(given_up.data(f, i), 0x5a, row_bytes(f));
      }
    }
    std::vector<int64_t> next(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) next[static_cast<size_t>(i)] = begin + i;
    next = in_table(std::move(next));
    if (!spec_.buffer.in_place) {
      return buffer_->append(Batch(std::make_shared<const std::vector<FieldSpec>>(table_.fields()), table_.rows(next)));
    }
    TRAINKIT_ASSIGN_OR_RETURN(ReplayRows rows, buffer_->reserve(count));
    for (size_t f = 0; f < table_.fields().size(); ++f) {
      const auto* from = static_cast<const std::byte*>(table_.column(f).const_data_ptr());
      for (int64_t i = 0; i < count; ++i) {
        const auto row = static_cast<size_t>(next[static_cast<size_t>(i)]);
        std::memcpy(rows.data(f, i), from + row * row_bytes(f), row_bytes(f));
      }
    }
    rows.commit();
    return absl::OkStatus();
  }
  size_t row_bytes(size_t field) const { return static_cast<size_t>(table_.fields()[field].row_bytes()); }

  const Spec spec_;
  const int64_t rank_, ranks_, batch_size_;
  const Table table_;
  std::unique_ptr<ReplayBuffer> buffer_;
  std::thread appender_;
};

/// Simulators that walk through the rows of a table. The policy decides how fast, so that the rows depend on the
/// weights. Numbers are eighths, of which float32 computes advantages without rounding.
class Simulators {
 public:
  Simulators(int64_t count, int64_t first)
      : first_(first), episode_(static_cast<size_t>(count)), at_(static_cast<size_t>(count)) {}

  int64_t size() const { return std::ssize(at_); }
  /// Rows of the table that they see.
  std::vector<int64_t> rows(int64_t table_size) const {
    std::vector<int64_t> rows;
    for (size_t i = 0; i < at_.size(); ++i) rows.push_back((31 * name(i) + 7 * episode_[i] + at_[i]) % table_size);
    return rows;
  }
  /// Moves each by 1 or 2. The next call of rows() has the last observations of episodes, until begin_episodes().
  StepOutcome step(const at::Tensor& action) {
    StepOutcome outcome = {at::empty({size()}), at::zeros({size()}, at::kBool), at::zeros({size()}, at::kBool)};
    for (size_t i = 0; i < at_.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      outcome.reward[row] = static_cast<double>((name(i) + 3 * episode_[i] + 5 * at_[i]) % 9 - 4) / 4;
      at_[i] += 1 + action[row].item<int64_t>();
      if (!has_ended(i)) continue;
      const int64_t kind = (name(i) + episode_[i]) % 3;  // 2: both
      outcome.terminated[row] = kind != 1;
      outcome.truncated[row] = kind != 0;
    }
    return outcome;
  }
  void begin_episodes() {
    for (size_t i = 0; i < at_.size(); ++i) {
      if (has_ended(i)) ++episode_[i], at_[i] = 0;
    }
  }

  StateDict state_dict() const { return {{"episode", episode_}, {"at", at_}}; }
  absl::Status load_state_dict(const StateDict& state) {
    TRAINKIT_ASSIGN_OR_RETURN(episode_, get_state<std::vector<int64_t>>(state, "episode"));
    TRAINKIT_ASSIGN_OR_RETURN(at_, get_state<std::vector<int64_t>>(state, "at"));
    return absl::OkStatus();
  }

 private:
  int64_t name(size_t i) const { return first_ + static_cast<int64_t>(i); }
  bool has_ended(size_t i) const { return at_[i] >= 4 + name(i) % 3; }

  int64_t first_;
  std::vector<int64_t> episode_, at_;
};

/// Values (R), in eighths, of observations.
at::Tensor values_of(const at::Tensor& x, const at::Tensor& m, const at::Tensor& head) {
  const at::Tensor means = x.to(at::kDouble).nan_to_num(0, 0, 0).flatten(1).mean(1);
  const at::Tensor values = (8 * means * head.detach().to(at::kDouble).sum().tanh()).round() / 8 + m / 4;
  return values.to(at::kFloat);
}

class RolloutMaker final : public Maker {
 public:
  RolloutMaker(const Spec& spec, HeadWeight head, int64_t rank, int64_t ranks)
      : own_(spec.buffer),
        head_(std::move(head)),
        batch_size_(spec.batch_size / ranks),
        table_(spec),
        simulators_(own_.simulators, rank * own_.simulators) {
    std::vector<FieldSpec> fields = table_.fields();
    fields.push_back({"action", at::kLong, {}});
    buffer_ = RolloutBuffer::create(fields, {.horizon = own_.horizon,
                                             .simulators = own_.simulators,
                                             .batch_size = batch_size_,
                                             .epochs = own_.passes,
                                             .observations = {"x", "m"},
                                             .gae = {.gamma = own_.discount, .lambda = own_.lambda},
                                             .normalize_advantage = own_.normalize,
                                             .seed = seed_of(spec, rank)})
                  .value();
    if (!own_.fills) buffer_->collect_with([this](RolloutBuffer&) { return collect(); });
  }

  BatchSource& buffer() override { return *buffer_; }
  void prepare(int64_t) override {
    const int64_t ended = buffer_->epoch() + (buffer_->position() == buffer_->epoch_length() ? 1 : 0);
    const int64_t collected = get_state<int64_t>(buffer_->state_dict(), "rollout").value();
    if (own_.fills && collected == ended) require(collect());
  }
  std::vector<NamedState> states() override { return {NamedState("simulators", simulators_)}; }
  void check(const Batch& batch) override;

 private:
  int64_t rows_per_rollout() const { return own_.horizon * own_.simulators; }
  absl::Status collect();
  void check_advantages();

  const BufferSpec own_;
  const HeadWeight head_;
  const int64_t batch_size_;
  const Table table_;
  Simulators simulators_;
  std::unique_ptr<RolloutBuffer> buffer_;
  std::vector<StepOutcome> outcomes_;       // of the last rollout
  std::vector<at::Tensor> values_, after_;  // of its observations, and of those after each step
  std::set<int64_t> seen_;                  // rows of the pass so far
};

absl::Status RolloutMaker::collect() {
  outcomes_.clear(), values_.clear(), after_.clear();
  const size_t x = 0, m = 3;
  while (!buffer_->is_full()) {
    std::vector<at::Tensor> rows = table_.rows(simulators_.rows(table_.size()));
    values_.push_back(values_of(rows[x], rows[m], head_()));
    rows.push_back(values_.back().gt(0).to(at::kLong));
    buffer_->add(rows, values_.back());
    StepOutcome outcome = simulators_.step(rows.back());
    const std::vector<at::Tensor> last = table_.rows(simulators_.rows(table_.size()));
    outcome.final_observations = {last[x], last[m]};
    after_.push_back(values_of(last[x], last[m], head_()));
    buffer_->add_outcome(outcome);
    outcomes_.push_back(std::move(outcome));
    simulators_.begin_episodes();
  }
  const std::vector<at::Tensor> next = table_.rows(simulators_.rows(table_.size()));
  TRAINKIT_RETURN_IF_ERROR(
      buffer_->finish({next[x], next[m]}, [&](const Batch& rows) { return values_of(rows["x"], rows["m"], head_()); }));
  check_advantages();
  return absl::OkStatus();
}

/// Compares advantages and returns with the definition, simulator by simulator.
void RolloutMaker::check_advantages() {
  for (int64_t i = 0; i < own_.simulators; ++i) {
    double later = 0;
    for (int64_t t = own_.horizon - 1; t >= 0; --t) {
      const auto step = static_cast<size_t>(t);
      const bool terminated = outcomes_[step].terminated[i].item<bool>();
      const bool ends = terminated || outcomes_[step].truncated[i].item<bool>();
      const double value = values_[step][i].item<double>(), after = after_[step][i].item<double>();
      const double delta = outcomes_[step].reward[i].item<double>() + (terminated ? 0 : own_.discount * after) - value;
      later = delta + (ends ? 0 : own_.discount * own_.lambda * later);
      const auto recorded = [&](const char* name) { return buffer_->field(name)[t][i].item<double>(); };
      const auto differs = [](double a, double b) { return a != b && !(std::isnan(a) && std::isnan(b)); };
      if (differs(recorded("advantage"), later) || differs(recorded("return"), later + value)) {
        faults.push_back(
            fmt::format("advantage of step {} of simulator {}: {}, expected {}", t, i, recorded("advantage"), later));
      }
    }
  }
}

void RolloutMaker::check(const Batch& batch) {
  const int64_t first = buffer_->epoch() * rows_per_rollout();
  const int64_t per_pass = rows_per_rollout() / batch_size_;
  if ((buffer_->position() - 1) % per_pass == 0) seen_.clear();
  std::vector<int64_t> rows;
  for (const int64_t row : batch.row_indices()) rows.push_back(row - first);
  for (const int64_t row : rows) {
    if (row >= 0 && row < rows_per_rollout() && seen_.insert(row).second) continue;
    return faults.push_back(fmt::format("a pass has row {} twice, or of another rollout", row));
  }
  for (const FieldSpec& field : buffer_->fields()) {
    at::Tensor expected = buffer_->field(field.name).flatten(0, 1).index_select(0, numbers(rows));
    if (field.name == "advantage" && own_.normalize) {
      const at::Tensor exact = expected.to(at::kDouble);
      const double mean = exact.mean().item<double>();
      const double sum = exact.sub(mean).square().sum().item<double>();
      const double deviation = std::sqrt(sum / static_cast<double>(std::max<int64_t>(1, batch_size_ - 1)));
      expected = ((exact - mean) / (deviation + 1e-8)).to(at::kFloat);
      if (at::allclose(batch["advantage"], expected, 1e-5, 1e-6, /*equal_nan=*/true)) continue;
      faults.emplace_back("advantages of a batch are not normalised");
    } else if (!same_bits(batch[field.name], expected)) {
      faults.push_back("a batch has rows with another '" + field.name + "'");
    }
  }
}

std::unique_ptr<Maker> make_maker(const Spec& spec, const HeadWeight& head, int64_t rank, int64_t ranks) {
  if (spec.source == "rollout") return std::make_unique<RolloutMaker>(spec, head, rank, ranks);
  return std::make_unique<ReplayMaker>(spec, rank, ranks);
}

}  // namespace

MadeSource::MadeSource(const Spec& spec, const HeadWeight& head, int64_t rank, int64_t ranks, bool joins) {
  for (int64_t i = joins ? 0 : rank; i < (joins ? ranks : rank + 1); ++i) {
    makers_.push_back(make_maker(spec, head, i, ranks));
  }
}

MadeSource::~MadeSource() = default;

void MadeSource::start() {
  for (const auto& maker : makers_) maker->start();
}

void MadeSource::prepare(int64_t batches) {
  for (const auto& maker : makers_) maker->prepare(batches);
}

std::vector<std::string> MadeSource::faults() const {
  std::vector<std::string> all;
  for (const auto& maker : makers_) all.insert(all.end(), maker->faults.begin(), maker->faults.end());
  return all;
}

std::vector<NamedState> MadeSource::states() { return makers_.front()->states(); }

void MadeSource::stop(absl::Status reason) {
  for (const auto& maker : makers_) maker->buffer().stop(reason);
}

absl::StatusOr<std::optional<Batch>> MadeSource::next() {
  std::vector<Batch> batches;
  for (const auto& maker : makers_) {
    TRAINKIT_ASSIGN_OR_RETURN(const std::optional<Batch> batch, maker->buffer().next());
    if (!batch) continue;
    maker->check(*batch);
    batches.push_back(*batch);
  }
  if (batches.empty()) return std::nullopt;
  if (batches.size() == 1) return batches.front();
  std::vector<at::Tensor> tensors;
  for (size_t f = 0; f < fields().size(); ++f) {
    std::vector<at::Tensor> parts;
    for (const Batch& batch : batches) parts.push_back(batch.tensors()[f]);
    tensors.push_back(at::cat(parts));
  }
  return Batch(batches.front().content()->fields, std::move(tensors));
}

bool has_buffer(const Spec& spec) { return spec.source == "replay" || spec.source == "rollout"; }

std::vector<int64_t> replay_draw(const Spec& spec, int64_t k, int64_t rank, int64_t ranks) {
  const int64_t batch_size = spec.batch_size / ranks;
  const int64_t end = rows_needed(spec, k, batch_size);
  const int64_t count = std::min(end, spec.buffer.capacity);
  RandomStream random(hash_key(seed_of(spec, rank), k));
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < batch_size; ++i) {
    rows.push_back(end - count + static_cast<int64_t>(random.below(static_cast<uint64_t>(count))));
  }
  return rows;
}

Batch replay_batch(const Spec& spec, int64_t k) {
  const Table table(spec);
  std::vector<int64_t> rows = replay_draw(spec, k);
  for (int64_t& row : rows) row %= table.size();
  return Batch(std::make_shared<const std::vector<FieldSpec>>(table.fields()), table.rows(rows));
}

at::Tensor made_order(const Spec& spec) {
  std::vector<at::Tensor> order;
  if (spec.source == "replay") {
    for (int64_t k = 0; k < spec.steps * spec.accumulate; ++k) order.push_back(numbers(replay_draw(spec, k)));
    return at::stack(order);
  }
  // The order is the same whatever the policy is.
  MadeSource source(
      spec, [] { return at::zeros({1}); }, 0, 1);
  const int64_t rows = spec.buffer.horizon * spec.buffer.simulators;
  const int64_t rollouts = std::max(spec.epochs, spec.steps * spec.accumulate) + 1;
  while (source.epoch() < rollouts) {
    source.prepare(1);
    std::vector<at::Tensor> passes;
    while (const std::optional<Batch> batch = source.next().value()) {
      passes.push_back(numbers(batch->row_indices()).remainder(rows));
    }
    order.push_back(at::cat(passes));
  }
  return at::stack(order);
}

}  // namespace trainkit::differential
