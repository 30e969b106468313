#pragma once
// Decides when a step is captured, replayed or run eagerly. StepCapture and GraphBackend do the capture.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "train/graph/step_trace.h"

namespace trainkit::detail {

/// Interface that records and replays device work: CUDA graphs, or a substitute in tests.
class GraphBackend {
 public:
  class Graph {
   public:
    virtual ~Graph() = default;
    /// Queues the recorded work on the current streams of the devices.
    virtual void replay() = 0;
  };

  virtual ~GraphBackend() = default;
  /// Runs `work` on the streams that captures use, one per device, after the work queued on the devices' current
  /// streams, which in turn wait for it.
  virtual void run_beside(const std::function<void()>& work) = 0;
  /// Records the devices' work of `work` without executing it. Rethrows the exception that ended the recording;
  /// everything is then as before, except for what `work` changed on the host.
  virtual std::unique_ptr<Graph> capture(const std::function<void()>& work) = 0;
};

/// Creates the backend of CUDA graphs for devices with index; null in a build without CUDA or for other devices. A
/// graph is launched on the current stream of the first device.
std::unique_ptr<GraphBackend> make_graph_backend(const std::vector<at::Device>& devices);

/// Packs the scalars of a captured step into one tensor. They are copied from there before the next replay overwrites
/// them.
class ScalarPack {
 public:
  /// Packs the scalars; part of the capture. Throws c10::ValueError if one is not a scalar or not on `device`.
  void pack(const std::vector<at::Tensor>& scalars, at::Device device);
  /// Allocates the memory for the next unpack() unless it is allocated already, so that unpack() cannot fail.
  void make_room();
  /// Returns copies of the scalars, in the order given; undefined ones stay undefined.
  std::vector<at::Tensor> unpack();

 private:
  struct Scalar {
    bool defined = false;
    at::ScalarType type = at::kFloat;
    std::vector<int64_t> sizes = {};
  };
  std::vector<Scalar> scalars_;
  at::Tensor bytes_;  // uint8, 16 bytes per scalar
  at::Tensor room_;   // of the same size, for the next unpack()
};

/// Identifies a kind of step: the shapes of its batches and everything else that a graph depends on.
using StepKey = std::vector<int64_t>;

/// One kind of step, and its graph once it is captured.
struct StepGraph {
  StepKey key;
  int64_t seen = 0;     // steps before the capture
  bool steady = false;  // the last two had equal records
  StepRecord record;    // of the last eager step
  int64_t last_use = 0;
  int64_t previous_use = 0;
  int64_t since_check = 0;

  std::unique_ptr<GraphBackend::Graph> graph;   // null until captured
  std::vector<std::vector<at::Tensor>> inputs;  // of each batch, at the addresses that the graph reads
  std::vector<int64_t> state;                   // what else the graph depends on, see StepCapture::state
  ScalarPack outputs;
  std::vector<std::string> metric_names;
  double weight = 0;
  std::vector<double> metric_weights;
};

struct StepGraphLimits {
  /// Maximum number of kinds of steps; the least recently used one is replaced.
  size_t kinds = 6;
  /// Steps of a kind before the first one that is recorded.
  int64_t warm_up = 1;
  /// Interval of checks: a captured step runs eagerly, and is compared, once per this many steps.
  int64_t check_every = 1000;
  /// Several ranks: a kind that occurs twice within N steps must be steady before they run graphs.
  int64_t often = 16;
  /// Number of eager steps after which a kind whose records keep changing is given up; also the tolerated number of
  /// replaced kinds and of recaptures.
  int64_t patience = 12;
};

/// Keeps the graphs of a TrainStep and decides what to do with each step. See Note [Life of a captured step].
class StepGraphs {
 public:
  enum class Action {
    kEager,    ///< Run it eagerly, without recording.
    kWarmUp,   ///< Run it eagerly on the capture stream, so that one-time allocations happen there.
    kTrace,    ///< As kWarmUp, and pass its record to traced().
    kCapture,  ///< Capture it, then call captured() or give_up().
    kReplay    ///< Replay its graph, then call replayed().
  };

  explicit StepGraphs(std::unique_ptr<GraphBackend> backend, const StepGraphLimits& limits = {});

  /// Returns what to do with the step of `key`, which becomes current().
  Action next(const StepKey& key);
  /// The same while ranks agree on the devices: kCapture and kReplay if next() has found the kind steady, else kEager.
  /// See Note [Graphs of several ranks].
  Action next_of_steady(const StepKey& key);
  /// Returns whether the kinds of most steps are steady, and none must run eagerly to be compared.
  bool are_steady() const;
  StepGraph& current() { return *current_; }
  void traced(StepRecord record);
  void captured(std::unique_ptr<GraphBackend::Graph> graph);
  void replayed();

  /// Runs this step eagerly without consequences for the others.
  void leave_out(std::string reason) { reason_ = std::move(reason); }
  /// Drops all graphs so that they are captured again, because their inputs have changed. Gives up if that happens too
  /// often.
  void forget();
  /// Drops all graphs and runs every further step eagerly.
  void give_up(std::string reason);

  bool active() const { return active_; }
  GraphBackend& backend() { return *backend_; }
  const std::string& reason() const { return reason_; }
  int64_t steps() const { return steps_; }
  int64_t captures() const { return captures_; }
  /// Returns whether any graph exists.
  bool holds_any() const;

 private:
  StepGraph* find(const StepKey& key) const;
  StepGraph& entry(const StepKey& key);
  void use(StepGraph& kind);

  std::unique_ptr<GraphBackend> backend_;  // kept after give_up(), which may be called from its run_beside()
  bool active_ = true;
  StepGraphLimits limits_;
  std::vector<std::unique_ptr<StepGraph>> kinds_;
  StepGraph* current_ = nullptr;
  std::string reason_;
  int64_t clock_ = 0, steps_ = 0, captures_ = 0, displaced_ = 0, forgotten_ = 0;
};

}  // namespace trainkit::detail
