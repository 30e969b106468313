#pragma once
/// `trainkit-hsi predict`: classifies the pixels of a cube with a trained run.

#include "hsi_classification/options.h"
#include "trainkit/app/app.h"

namespace trainkit::hsi {

/// Returns the command. `options` are those that app.add_flags binds.
AppCommand predict_command(App& app, const HsiOptions& options);

}  // namespace trainkit::hsi
