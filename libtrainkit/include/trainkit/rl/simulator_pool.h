#pragma once
/// Many simulators that take their steps together, in threads.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "trainkit/core/random.h"
#include "trainkit/core/state_dict.h"
#include "trainkit/data/batch.h"
#include "trainkit/rl/rollout_buffer.h"

namespace trainkit {

/// What a step of a simulator brought.
struct SimulatorStep {
  float reward = 0;
  /// The episode has ended in a state whose further return is 0: the pole has fallen, the game is won.
  bool terminated = false;
  /// The episode is cut off, for example by a limit of time: the state still has a value.
  bool truncated = false;
};

/// One simulator, written by the user: a game, a robot's physics, a market. The pool calls it from one thread at a
/// time, but not always from the same one.
///
/// `observation` has one row; write every byte of each of its fields: `*observation.row<float>(field, 0) = ...`.
/// `random` is a stream of its own for each reset and each step, a function of (seed, simulator, episode, step).
/// An exception ends the run: the pool returns it with the simulator's number.
class Simulator {
 public:
  virtual ~Simulator() = default;
  /// Begins an episode, and writes its first observation.
  virtual void reset(RandomStream& random, const BatchView& observation) = 0;
  /// Takes a step with `action`, one row of the pool's action field, and writes the observation after it, also that of
  /// the last step of an episode.
  virtual SimulatorStep step(const std::byte* action, RandomStream& random, const BatchView& observation) = 0;

  /// Returns the state within an episode, small; nullopt if the simulator cannot.
  virtual std::optional<StateDict> save() const { return std::nullopt; }
  /// Restores it, and writes the observation of that moment. Called only if save() returned a state.
  virtual absl::Status load(const StateDict& state, const BatchView& observation);
};

struct SimulatorPoolOptions {
  int64_t simulators = 1;
  /// Threads that run simulators, the calling one included; never more than simulators. The results do not depend on
  /// it.
  int64_t threads = 1;
  uint64_t seed = 0;
};

/// What a step of all simulators brought, tensors on the CPU in the pool's memory; row i is of simulator i. In addition
/// to StepOutcome, whose `final_observations` has one tensor per field of the pool: where an episode has ended, its
/// last observation.
struct PoolStep : StepOutcome {
  /// The observations to act on now. Where an episode has ended, the first one of the next episode.
  Batch observation;
  /// The simulators whose episodes have ended, ascending, int64 (M), with the sums of their rewards, float64 (M), and
  /// their numbers of steps, int64 (M).
  at::Tensor ended, episode_return, episode_length;

  /// Returns `field` of the observations after the step and before new episodes began, (N, shape...), as a replay
  /// buffer stores it: a copy if an episode has ended.
  at::Tensor next(std::string_view field) const;
};

/// Runs N simulators in step. Each writes its observation into its row of a batch; when an episode ends, the next one
/// begins in the same step.
///
///   auto pool = SimulatorPool::create([](int64_t) { return std::make_unique<CartPole>(); },
///       {{"observation", at::kFloat, {4}}}, {"action", at::kLong, {}}, {.simulators = 64, .threads = 2}).value();
///   Batch now = pool->observation();
///   for (;;) {
///     const at::Tensor action = act(now["observation"]);
///     const PoolStep step = pool->step(action).value();      // now and step are both valid
///     now = step.observation;
///   }
///
/// Rewards, observations and random numbers are the same for any number of threads. The memory of a batch is written
/// again two steps later: copy what you keep longer. One thread calls the pool. The pool's own threads run LibTorch
/// with one thread.
class SimulatorPool {
 public:
  /// Makes simulator 0, 1, ... with `factory`, and begins an episode of each. Errors of exit code 2: an option out of
  /// range, no field, an exception of a simulator.
  static absl::StatusOr<std::unique_ptr<SimulatorPool>> create(
      const std::function<std::unique_ptr<Simulator>(int64_t simulator)>& factory, std::vector<FieldSpec> observation,
      FieldSpec action, const SimulatorPoolOptions& options = {});
  ~SimulatorPool();
  SimulatorPool(const SimulatorPool&) = delete;
  SimulatorPool& operator=(const SimulatorPool&) = delete;

  int64_t size() const;
  /// Fields of an observation, and the field of an action.
  const std::vector<FieldSpec>& fields() const;
  const FieldSpec& action() const;

  /// The observations to act on: of the last step, or of the first episodes.
  const Batch& observation() const;
  /// Takes a step of all simulators. `actions` is (N, shape...) of the action's dtype; from another device than the CPU
  /// it is copied, which waits for it. Blocks until all simulators are done. Errors of exit code 2, and the same one
  /// from then on: actions of another shape or dtype; an exception of a simulator, the lowest number if several fail.
  absl::StatusOr<PoolStep> step(const at::Tensor& actions);

  /// Whether all simulators can save their state, so that a resumed run continues their episodes.
  bool is_exact() const;
  /// State: "seed", "exact" (is_exact()), "episode", "length" and "return" of each simulator, and
  /// "simulator.<i>.<name>". Simulators that cannot save begin their next episode at load_state_dict(). Errors of exit
  /// code 5: another number of simulators or seed, a state that a simulator refuses; the pool must not be used then.
  StateDict state_dict() const;
  absl::Status load_state_dict(const StateDict& state);

 private:
  class Impl;
  explicit SimulatorPool(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainkit
