#pragma once
/// `trainkit-hsi export`: writes a trained network as an ONNX file.

#include "hsi_classification/options.h"
#include "trainkit/app/app.h"

namespace trainkit::hsi {

/// Returns the command. The file maps "patches" (batch, p, p, bands) float32, as measured, to "scores" and
/// "probabilities" (batch, classes): it contains the scaling of the training scene and its principal components.
/// `options` are those that app.add_flags binds.
AppCommand export_command(App& app, const HsiOptions& options);

}  // namespace trainkit::hsi
