#pragma once
/// Continues from the weights of another scene (--init_from): prepares the pixels as that scene's, and puts the rows of
/// classes into order.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <optional>

#include "hsi_classification/options.h"
#include "hsi_classification/scene.h"
#include "hsi_classification/trained_scene.h"
#include "trainkit/app/app.h"

namespace trainkit::hsi {

/// Returns the preprocessing with which this run's model sees pixels: that of the weights of --init_from, or of the run
/// that is resumed. nullopt: no such file; the scene's own statistics. Errors: those of load_trained_scene;
/// weights.meaning (exit code 5) for other bands, or another number of principal components.
absl::StatusOr<std::optional<Preprocessing>> earlier_preprocessing(const RunOptions& run, const HsiOptions& options,
                                                                   const Scene& scene);

/// Implements App::adapt_weights: rows of the output layer by the names of classes. Errors: weights.meaning if no class
/// is known.
absl::Status adapt_rows(const RunWeights& from, const Scene& scene, const HsiOptions& options, LoadWeightsOptions& load,
                        RunFacts& facts);

}  // namespace trainkit::hsi
