#pragma once
// Wraps the loss functions of a run.

#include "train/run/fit_context.h"
#include "trainkit/train/loss.h"

namespace trainkit {

/// Returns `loss` with exceptions that become errors which name the step of `progress` and `who`. Keeps the reference.
LossFunction naming_step(LossFunction loss, const char* who, const RunProgress& progress);
/// The same for the losses of players.
Trained naming_step(Trained trained, const RunProgress& progress);

/// Returns `loss` with gradients enabled, for an evaluation. Its results are detached.
LossFunction with_gradients(LossFunction loss);

}  // namespace trainkit
