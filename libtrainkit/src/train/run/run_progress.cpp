// The counters of a run in its checkpoints.
#include <utility>
#include <variant>

#include "train/run/run_state.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {

StateDict progress_state(const RunProgress& progress) {
  StateDict state = {{"step", progress.step},
                     {"fit", progress.fit},
                     {"first_step", progress.first_step},
                     {"first_epoch", progress.first_epoch},
                     {"bad_evaluations", progress.bad_evaluations},
                     {"best_step", progress.best_step},
                     {"evaluated_step", progress.evaluated_step},
                     {"weight_unit", progress.weight_unit},
                     {"split", progress.split}};
  if (!progress.player_units.empty()) state["player_units"] = progress.player_units;
  for (const auto& [name, value] : progress.trainable) state["trainable." + name] = value;
  for (const auto& [name, value] : progress.best) state["best." + name] = value;
  return state;
}

absl::StatusOr<RunProgress> load_progress(const StateDict& state) {
  RunProgress progress;
  TRAINKIT_ASSIGN_OR_RETURN(progress.step, get_state<int64_t>(state, "step"));
  TRAINKIT_ASSIGN_OR_RETURN(progress.bad_evaluations, get_state<int64_t>(state, "bad_evaluations"));
  TRAINKIT_ASSIGN_OR_RETURN(progress.best_step, get_state<int64_t>(state, "best_step"));
  for (const auto& [name, value] : {std::pair("fit", &progress.fit), std::pair("first_step", &progress.first_step),
                                    std::pair("first_epoch", &progress.first_epoch)}) {
    if (!state.contains(name)) continue;  // in older checkpoints
    TRAINKIT_ASSIGN_OR_RETURN(*value, get_state<int64_t>(state, name));
  }
  progress.evaluated_step = progress.step;  // default for checkpoints without it
  if (state.contains("evaluated_step")) {
    TRAINKIT_ASSIGN_OR_RETURN(progress.evaluated_step, get_state<int64_t>(state, "evaluated_step"));
  }
  if (state.contains("weight_unit")) {
    TRAINKIT_ASSIGN_OR_RETURN(progress.weight_unit, get_state<double>(state, "weight_unit"));
  }
  if (state.contains("player_units")) {
    TRAINKIT_ASSIGN_OR_RETURN(progress.player_units, get_state<std::vector<double>>(state, "player_units"));
  }
  if (state.contains("split")) {
    TRAINKIT_ASSIGN_OR_RETURN(progress.split, get_state<int64_t>(state, "split"));
    if (progress.split < 1) {
      return to_status({.exit_code = ExitCode::kWeights,
                        .id = "ckpt.state",
                        .field = "split",
                        .problem = "is out of range",
                        .got = std::to_string(progress.split),
                        .expected = "at least 1"});
    }
  }
  for (const auto& [name, value] : sub_state(state, "trainable")) {
    if (const bool* trainable = std::get_if<bool>(&value)) progress.trainable[name] = *trainable;
  }
  for (const auto& [name, value] : sub_state(state, "best")) {
    if (const double* number = std::get_if<double>(&value)) progress.best[name] = *number;
  }
  return progress;
}

int64_t saved_fit(const StateDict& state) { return get_state<int64_t>(state, "trainer.fit").value_or(0); }

}  // namespace trainkit
