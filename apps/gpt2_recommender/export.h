#pragma once
/// `trainkit-gpt2rec export`: writes the towers of a trained recommender as ONNX files.

#include "gpt2_recommender/options.h"
#include "trainkit/app/app.h"

namespace trainkit::rec {

/// Returns the command. The file of the user tower maps "user" (batch) int64 to "vector" (batch, D) and "scores"
/// (batch, items); that of the item tower maps "item" (batch) int64 to "vector" (batch, D). Users and items are
/// numbers; the lists "user_ids" and "item_ids" in the file give their ids. `options` are those that app.add_flags
/// binds.
AppCommand export_command(App& app, const RecOptions& options);

}  // namespace trainkit::rec
