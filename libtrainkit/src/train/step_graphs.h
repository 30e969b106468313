#pragma once
// When a step is captured, replayed or run eagerly. What is captured, and how, is TrainStep's and GraphBackend's.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "step_trace.h"

namespace trainkit::detail {

/// Where recorded work is kept and started: CUDA's graphs, or what a test has instead.
class GraphBackend {
 public:
  class Graph {
   public:
    virtual ~Graph() = default;
    /// Queues the recorded work on the current stream.
    virtual void replay() = 0;
  };

  virtual ~GraphBackend() = default;
  /// Runs `work` where it would be recorded: after what is queued on the current stream, which goes on after it.
  virtual void run_beside(const std::function<void()>& work) = 0;
  /// Records what `work` queues, and does not do it. Throws what ended the recording; all is as before it then, but
  /// what `work` changed on the host.
  virtual std::unique_ptr<Graph> capture(const std::function<void()>& work) = 0;
};

/// CUDA's; null in a build without CUDA, or on another device.
std::unique_ptr<GraphBackend> make_graph_backend(at::Device device);

/// What tests put in the place of CUDA's, for any device. Empty: nothing.
std::function<std::unique_ptr<GraphBackend>()>& graph_backend_of_test();

/// Scalars of a captured step in one place, from where they are copied away before the next step writes over them.
class ScalarPack {
 public:
  /// Part of the capture. Throws c10::ValueError if one is no scalar, or not on `device`.
  void pack(const std::vector<at::Tensor>& scalars, at::Device device);
  /// Takes the memory that the next unpack() needs, unless it has been taken: that one cannot fail then.
  void make_room();
  /// The same scalars in memory of their own, in the order given; undefined ones stay so.
  std::vector<at::Tensor> unpack();

 private:
  struct Scalar {
    bool defined = false;
    at::ScalarType type = at::kFloat;
    std::vector<int64_t> sizes = {};
  };
  std::vector<Scalar> scalars_;
  at::Tensor bytes_;  // uint8, 16 of them for each
  at::Tensor room_;   // of the same size
};

/// What stands for a step: the shapes of its batches and all else that a graph is made for.
using StepKey = std::vector<int64_t>;

struct StepGraph {
  StepKey key;
  int64_t seen = 0;     // steps before the capture
  bool steady = false;  // the last two of them asked for the same
  StepRecord record;    // of the last eager one
  int64_t last_use = 0;
  int64_t since_check = 0;

  std::unique_ptr<GraphBackend::Graph> graph;   // null until captured
  std::vector<std::vector<at::Tensor>> inputs;  // of each batch; the graph reads them where they are
  std::vector<int64_t> state;                   // what else it has taken over; see TrainStep::step_state
  ScalarPack outputs;
  std::vector<std::string> metric_names;
  double weight = 0;
};

struct StepGraphLimits {
  /// Kinds of steps that are known at a time; the one not used for longest gives way.
  size_t kinds = 6;
  /// A captured step is run eagerly, and compared, once in so many.
  int64_t check_every = 1000;
  /// Eager steps after which one that is never twice the same is given up, and kinds that gave way before they paid.
  int64_t patience = 12;
};

class StepGraphs {
 public:
  enum class Action {
    kEager,    ///< Nothing to be learnt from it.
    kWarmUp,   ///< Eagerly, beside: what is made once is made there.
    kTrace,    ///< The same, and traced() with what it asked for.
    kCapture,  ///< Record it, then captured() or give_up().
    kReplay
  };

  explicit StepGraphs(std::unique_ptr<GraphBackend> backend, const StepGraphLimits& limits = {});

  /// What to do with the step of `key`, which is current() from now on.
  Action next(const StepKey& key);
  StepGraph& current() { return *current_; }
  void traced(StepRecord record);
  void captured(std::unique_ptr<GraphBackend::Graph> graph);
  void replayed();

  /// One step runs eagerly; the others go on.
  void leave_out(std::string reason) { reason_ = std::move(reason); }
  /// Graphs are captured anew: what they took over has changed. Given up if that is so too often.
  void forget();
  /// No more graphs.
  void give_up(std::string reason);

  bool active() const { return active_; }
  GraphBackend& backend() { return *backend_; }
  const std::string& reason() const { return reason_; }
  int64_t steps() const { return steps_; }
  int64_t captures() const { return captures_; }
  /// Graphs that hold memory now.
  bool holds_any() const;

 private:
  StepGraph& entry(const StepKey& key);

  std::unique_ptr<GraphBackend> backend_;  // stays: it may be running the step that gives up
  bool active_ = true;
  StepGraphLimits limits_;
  std::vector<std::unique_ptr<StepGraph>> kinds_;
  StepGraph* current_ = nullptr;
  std::string reason_;
  int64_t clock_ = 0, steps_ = 0, captures_ = 0, displaced_ = 0, forgotten_ = 0;
};

}  // namespace trainkit::detail
