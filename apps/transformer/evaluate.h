#pragma once
/// `trainkit-transformer evaluate`: scores a text with a trained run.

#include "trainkit/app/app.h"
#include "transformer/options.h"

namespace trainkit::transformer {

/// Returns the command. `options` are those that app.add_flags binds.
AppCommand evaluate_command(App& app, const TransformerOptions& options);

}  // namespace trainkit::transformer
