#include "trainkit/rl/simulator_pool.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ostream.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "core/base/attempt.h"
#include "core/base/option_problems.h"
#include "core/base/user_exception.h"
#include "rl/simulator_threads.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

using Fields = std::shared_ptr<const std::vector<FieldSpec>>;

at::Tensor new_rows(const FieldSpec& field, int64_t rows) {
  std::vector<int64_t> shape = {rows};
  shape.insert(shape.end(), field.shape.begin(), field.shape.end());
  return at::empty(shape, field.dtype);
}

/// Rows of the observation's fields, as tensors and as memory to write into.
struct Rows {
  Rows(const Fields& fields, int64_t rows) {
    for (const FieldSpec& field : *fields) {
      tensors.push_back(new_rows(field, rows));
      memory.push_back({static_cast<std::byte*>(tensors.back().mutable_data_ptr()), field.row_bytes()});
    }
    batch = Batch(fields, tensors);
  }
  BatchView row(int64_t i) const { return BatchView(memory, 1, i); }
  void copy_row(const Rows& from, int64_t i) const {
    for (size_t f = 0; f < memory.size(); ++f) {
      const int64_t bytes = memory[f].row_bytes;
      std::memcpy(memory[f].data + i * bytes, from.memory[f].data + i * bytes, static_cast<size_t>(bytes));
    }
  }

  std::vector<at::Tensor> tensors;
  std::vector<BatchView::Field> memory;
  Batch batch;
};

/// Memory of one step.
struct StepMemory {
  StepMemory(const Fields& fields, int64_t n)
      : observation(fields, n),
        last(fields, n),
        reward(at::empty({n}, at::kFloat)),
        terminated(at::empty({n}, at::kBool)),
        truncated(at::empty({n}, at::kBool)) {}

  Rows observation;
  Rows last;  // of the episodes that have ended
  at::Tensor reward, terminated, truncated;
};

/// A simulator and its episode.
struct Slot {
  std::unique_ptr<Simulator> simulator;
  int64_t episode = 0;
  uint64_t key = 0;         // of the episode's random numbers
  int64_t length = 0;       // steps so far
  double total = 0;         // rewards so far
  int64_t last_length = 0;  // of the episode before
  double last_total = 0;
  absl::Status failure = {};
};

absl::Status usage(std::string field, std::string problem, std::string hint = {}) {
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "rl.simulators",
                    .field = std::move(field),
                    .problem = std::move(problem),
                    .hint = std::move(hint)},
                   absl::StatusCode::kInvalidArgument);
}

absl::Status bad_state(std::string field, std::string problem) {
  return to_status({.exit_code = ExitCode::kWeights,
                    .id = "ckpt.simulators",
                    .field = std::move(field),
                    .problem = std::move(problem)},
                   absl::StatusCode::kInvalidArgument);
}

std::string name_of(int64_t simulator) { return fmt::format("simulator.{}", simulator); }

}  // namespace

absl::Status Simulator::load(const StateDict& /*state*/, const BatchView& /*observation*/) {
  return absl::UnimplementedError("the simulator cannot load a state");
}

at::Tensor PoolStep::next(std::string_view field) const {
  const at::Tensor& now = observation[field];
  if (ended.numel() == 0) return now;
  const auto& fields = observation.fields();
  const auto place = std::find_if(fields.begin(), fields.end(), [&](const FieldSpec& f) { return f.name == field; });
  return now.index_copy(0, ended, final_observations[place - fields.begin()].index_select(0, ended));
}

class SimulatorPool::Impl {
 public:
  Impl(std::vector<FieldSpec> fields, FieldSpec action, const SimulatorPoolOptions& options)
      : fields_(std::make_shared<const std::vector<FieldSpec>>(std::move(fields))),
        action_(std::move(action)),
        options_(options),
        memory_{StepMemory(fields_, options.simulators), StepMemory(fields_, options.simulators)},
        slots_(static_cast<size_t>(options.simulators)),
        threads_(std::min(options.threads, options.simulators), options.simulators) {}

  int64_t size() const { return options_.simulators; }
  const std::vector<FieldSpec>& fields() const { return *fields_; }
  const FieldSpec& action() const { return action_; }
  const Batch& observation() const { return memory_[current_].observation.batch; }
  bool is_exact() const { return is_exact_; }

  absl::Status begin(const std::function<std::unique_ptr<Simulator>(int64_t)>& factory) {
    for (int64_t i = 0; i < size(); ++i) {
      try {
        slots_[i].simulator = factory(i);
      } catch (...) {
        return detail::status_from_user_exception("", fmt::format("the factory of simulator {}", i));
      }
      if (!slots_[i].simulator) return usage("factory", fmt::format("returned null for simulator {}", i));
    }
    std::atomic<bool> all_save{true};
    run([&](Slot& slot, int64_t i) {
      reset(slot, i, memory_[current_].observation);
      if (!slot.simulator->save()) all_save = false;
    });
    is_exact_ = all_save;
    return failed_;
  }

  absl::StatusOr<PoolStep> step(const at::Tensor& actions) {
    TRAINKIT_RETURN_IF_ERROR(failed_);
    TRAINKIT_RETURN_IF_ERROR(check(actions));
    const at::Tensor on_host = actions.to(at::kCPU).contiguous();
    const auto* const action = static_cast<const std::byte*>(on_host.const_data_ptr());
    const int64_t bytes = action_.row_bytes();
    current_ = 1 - current_;
    const StepMemory& memory = memory_[current_];
    auto* const reward = memory.reward.mutable_data_ptr<float>();
    auto* const terminated = memory.terminated.mutable_data_ptr<bool>();
    auto* const truncated = memory.truncated.mutable_data_ptr<bool>();
    run([&](Slot& slot, int64_t i) {
      ++slot.length;
      RandomStream random = random_of(slot);
      const SimulatorStep result = slot.simulator->step(action + i * bytes, random, memory.observation.row(i));
      reward[i] = result.reward;
      terminated[i] = result.terminated;
      truncated[i] = result.truncated;
      slot.total += result.reward;
      if (!result.terminated && !result.truncated) return;
      memory.last.copy_row(memory.observation, i);
      slot.last_length = slot.length;
      slot.last_total = slot.total;
      ++slot.episode;
      reset(slot, i, memory.observation);
    });
    TRAINKIT_RETURN_IF_ERROR(failed_);
    return result_of(memory);
  }

  StateDict state_dict() const {
    std::vector<int64_t> episodes, lengths;
    std::vector<double> totals;
    for (const Slot& slot : slots_) {
      episodes.push_back(slot.episode);
      lengths.push_back(slot.length);
      totals.push_back(slot.total);
    }
    StateDict state = {{"seed", static_cast<int64_t>(options_.seed)},
                       {"exact", is_exact_},
                       {"episode", std::move(episodes)},
                       {"length", std::move(lengths)},
                       {"return", std::move(totals)}};
    if (!is_exact_) return state;
    for (int64_t i = 0; i < size(); ++i) {
      merge_state(state, name_of(i), slots_[i].simulator->save().value_or(StateDict{}));
    }
    return state;
  }

  absl::Status load_state_dict(const StateDict& state) {
    TRAINKIT_ASSIGN_OR_RETURN(const int64_t seed, get_state<int64_t>(state, "seed"));
    TRAINKIT_ASSIGN_OR_RETURN(const bool exact, get_state<bool>(state, "exact"));
    TRAINKIT_ASSIGN_OR_RETURN(const auto episodes, get_state<std::vector<int64_t>>(state, "episode"));
    TRAINKIT_ASSIGN_OR_RETURN(const auto lengths, get_state<std::vector<int64_t>>(state, "length"));
    TRAINKIT_ASSIGN_OR_RETURN(const auto totals, get_state<std::vector<double>>(state, "return"));
    if (std::ssize(episodes) != size() || lengths.size() != episodes.size() || totals.size() != episodes.size()) {
      return bad_state("simulators",
                       fmt::format("the checkpoint has {} simulators, this run {}", episodes.size(), size()));
    }
    if (seed != static_cast<int64_t>(options_.seed)) {
      return bad_state("seed", fmt::format("the checkpoint's simulators have seed {}, this run's {}",
                                           static_cast<uint64_t>(seed), options_.seed));
    }
    for (int64_t i = 0; i < size(); ++i) {
      set_episode(slots_[i], i, episodes[i]);
      slots_[i].length = lengths[i];
      slots_[i].total = totals[i];
    }
    failed_ = exact && is_exact_ ? continue_episodes(state) : begin_next_episodes();
    return failed_;
  }

 private:
  /// The random numbers of the episode's step now; with length 0 those of its reset.
  static RandomStream random_of(const Slot& slot) { return RandomStream(hash_key(slot.key, slot.length)); }

  void set_episode(Slot& slot, int64_t i, int64_t episode) const {
    slot.episode = episode;
    slot.key = hash_key(options_.seed, i, episode);
  }

  /// Begins the episode whose number the slot has.
  void reset(Slot& slot, int64_t i, const Rows& rows) const {
    set_episode(slot, i, slot.episode);
    slot.length = 0;
    slot.total = 0;
    RandomStream random = random_of(slot);
    slot.simulator->reset(random, rows.row(i));
  }

  /// Calls work(slot, i) of all simulators, and keeps the exception of the first simulator that fails.
  template <class Work>
  void run(const Work& work) {
    std::atomic<bool> any_failed{false};
    threads_.run([&](int64_t i) {
      Slot& slot = slots_[i];
      try {
        work(slot, i);
      } catch (...) {
        slot.failure = detail::status_from_user_exception(fmt::format("episode {}, step {}", slot.episode, slot.length),
                                                          fmt::format("simulator {}", i));
        any_failed = true;
      }
    });
    if (!any_failed) return;
    failed_ = std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return !slot.failure.ok(); })->failure;
  }

  absl::Status check(const at::Tensor& actions) const {
    std::vector<int64_t> shape = {size()};
    shape.insert(shape.end(), action_.shape.begin(), action_.shape.end());
    if (!actions.defined()) return usage(action_.name, "there are no actions");
    if (actions.scalar_type() == action_.dtype && actions.sizes() == shape) return absl::OkStatus();
    return usage(action_.name, fmt::format("actions must be {} {}, got {} {}", c10::toString(action_.dtype),
                                           fmt::streamed(c10::IntArrayRef(shape)), c10::toString(actions.scalar_type()),
                                           fmt::streamed(actions.sizes())));
  }

  PoolStep result_of(const StepMemory& memory) const {
    std::vector<int64_t> ended, lengths;
    std::vector<double> totals;
    const auto* const terminated = memory.terminated.const_data_ptr<bool>();
    const auto* const truncated = memory.truncated.const_data_ptr<bool>();
    for (int64_t i = 0; i < size(); ++i) {
      if (!terminated[i] && !truncated[i]) continue;
      ended.push_back(i);
      lengths.push_back(slots_[i].last_length);
      totals.push_back(slots_[i].last_total);
    }
    PoolStep step;
    step.reward = memory.reward;
    step.terminated = memory.terminated;
    step.truncated = memory.truncated;
    step.final_observations = memory.last.tensors;
    step.observation = memory.observation.batch;
    step.ended = at::tensor(ended, at::kLong);
    step.episode_return = at::tensor(totals, at::kDouble);
    step.episode_length = at::tensor(lengths, at::kLong);
    return step;
  }

  absl::Status continue_episodes(const StateDict& state) {
    for (int64_t i = 0; i < size(); ++i) {
      const absl::Status status = detail::attempt([&] {
        return slots_[i].simulator->load(sub_state(state, name_of(i)), memory_[current_].observation.row(i));
      });
      if (!status.ok()) return bad_state(name_of(i), std::string(status.message()));
    }
    return absl::OkStatus();
  }

  absl::Status begin_next_episodes() {
    failed_ = absl::OkStatus();
    run([&](Slot& slot, int64_t i) {
      ++slot.episode;
      reset(slot, i, memory_[current_].observation);
    });
    return failed_;
  }

  const Fields fields_;
  const FieldSpec action_;
  const SimulatorPoolOptions options_;
  std::array<StepMemory, 2> memory_;  // of the last step and the one before
  size_t current_ = 0;
  std::vector<Slot> slots_;
  absl::Status failed_;
  bool is_exact_ = false;
  detail::SimulatorThreads threads_;
};

absl::StatusOr<std::unique_ptr<SimulatorPool>> SimulatorPool::create(
    const std::function<std::unique_ptr<Simulator>(int64_t simulator)>& factory, std::vector<FieldSpec> observation,
    FieldSpec action, const SimulatorPoolOptions& options) {
  detail::OptionProblems problems;
  problems.require(!observation.empty(), "there must be at least one field")
      .require(options.simulators >= 1, "simulators", ">= 1", options.simulators)
      .require(options.simulators < int64_t{1} << 31, "simulators", "< 2^31", options.simulators)
      .require(options.threads >= 1, "threads", ">= 1", options.threads)
      .require(static_cast<bool>(factory), "there is no factory");
  if (!problems.empty()) return usage("SimulatorPoolOptions", problems.text());
  std::unique_ptr<SimulatorPool> pool(
      new SimulatorPool(std::make_unique<Impl>(std::move(observation), std::move(action), options)));
  TRAINKIT_RETURN_IF_ERROR(pool->impl_->begin(factory));
  return pool;
}

SimulatorPool::SimulatorPool(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SimulatorPool::~SimulatorPool() = default;
int64_t SimulatorPool::size() const { return impl_->size(); }
const std::vector<FieldSpec>& SimulatorPool::fields() const { return impl_->fields(); }
const FieldSpec& SimulatorPool::action() const { return impl_->action(); }
const Batch& SimulatorPool::observation() const { return impl_->observation(); }
absl::StatusOr<PoolStep> SimulatorPool::step(const at::Tensor& actions) { return impl_->step(actions); }
bool SimulatorPool::is_exact() const { return impl_->is_exact(); }
StateDict SimulatorPool::state_dict() const { return impl_->state_dict(); }
absl::Status SimulatorPool::load_state_dict(const StateDict& state) { return impl_->load_state_dict(state); }

}  // namespace trainkit
