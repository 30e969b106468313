#pragma once
/// Runs a program with the library.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model.h"
#include "record.h"
#include "spec.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/optim/optimizer.h"

namespace trainkit::differential {

/// Where and how a program runs.
struct Setup {
  int64_t replicas = 1;
  bool share_weights = true;
  std::shared_ptr<ProcessGroup> group = nullptr;  ///< of the ranks; a rank's batch is its part of Spec::batch_size
  Sharding sharding = Sharding::kNone;
  int64_t joins = 1;          ///< ranks whose buffers give the batches of this run, which has one
  int64_t micro_batches = 1;  ///< batches of the loader per Spec::batch_size rows
  int64_t split_from = 0;     ///< step from which batches are split in two; 0: never
  int64_t fail_at = 0;        ///< step whose first call of the loss function runs out of memory once; 0: none
  int64_t resume_at = 0;      ///< TrainStep: step after which everything is made anew and loaded; 0: none
  /// Trainer: step whose loss function stops the run, with an exception or (kills) with SIGKILL; 0: none.
  int64_t stop_at = 0;
  bool kills = false;
  std::string folder = {};  ///< Trainer: folder of checkpoints; empty: none
  bool resumes = false;     ///< Trainer: continues from the latest checkpoint there, if there is one
};

/// A hand-written loop of TrainStep.
Record run_steps(const Spec& spec, const Setup& setup = {});
/// Trainer::fit, or the loop of a session.
Record run_trainer(const Spec& spec, const Setup& setup = {});
/// One of them; an exception becomes an entry "error/<text>".
Record run_program(const Spec& spec, const Setup& setup = {});

// Parts of both.
std::unique_ptr<DeviceReplicator> make_devices(const Spec& spec, const Setup& setup);
/// With the groups of the program, or of its player `player`; parameters of `part` of `parts` only.
std::unique_ptr<Optimizer> make_optimizer(const Spec& spec, DeviceReplicator& devices, int64_t part = 0,
                                          int64_t parts = 1);
/// The players of a program with their optimizers and losses, called p0, p1, ...
std::vector<Player> make_players(const Spec& spec, DeviceReplicator& devices, std::vector<at::Tensor>* kept,
                                 const OnCall& on_call);
/// The features that the players share; null if there are none.
SharedFunction make_shared_of(const Spec& spec, const Setup& setup);
/// The optimizers by player.
using Optimizers = std::vector<Optimizer*>;
std::shared_ptr<const LRSchedule> make_schedule(const Spec& spec);
/// Applies the changes of requires_grad that are due before `step`.
void change_model(const Spec& spec, int64_t step, DeviceReplicator& devices, const Optimizers& optimizers);
/// Adds weights, buffers, optimizer state and learning rates under `place`.
void put_state(Record& record, const std::string& place, DeviceReplicator& devices, const Optimizers& optimizers);
void put_rates(Record& record, const std::string& place, const Optimizer& optimizer);
/// Adds the norm of the gradients of a player, called in on_gradients.
void put_gradients(Record& record, const std::string& place, std::string_view player, const Optimizers& optimizers);

}  // namespace trainkit::differential
