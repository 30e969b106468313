#pragma once
/// What App::adapt_weights needs: the weights of --init_from, the files next to them, and rows of tensors by name.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <vector>

#include "trainkit/app/predictor.h"
#include "trainkit/report/summary.h"
#include "trainkit/train/weights.h"

namespace trainkit {

/// Finds the weights of --init_from: a file, or the best weights or a checkpoint of a run folder, verified. `run` is
/// the folder of the run that holds the file. Errors: exit code 5.
absl::StatusOr<RunWeights> find_initial_weights(const std::string& path);

/// Returns the path of a file next to the weights, or in the folder of their run; "" if there is none.
std::string file_beside(const RunWeights& weights, const std::string& name);

/// Returns a setting in the config.yaml of the run that wrote the weights, as text; nullopt if it is not known.
std::optional<std::string> setting_beside(const RunWeights& weights, const std::string& name);

/// weights.meaning (exit code 5): a tensor means something else in the file than in this run.
absl::Status other_meaning(const std::string& where, const std::string& field, const std::string& problem,
                           const std::string& got = {}, const std::string& expected = {}, const std::string& hint = {});

/// Checks a setting that no shape shows against that of the run that wrote the weights, if it is known: weights.meaning
/// if they differ. `noun` describes it ("number of heads"), and `default_value` replaces a setting of 0.
absl::Status check_setting(const RunWeights& weights, const std::string& setting, const std::string& value,
                           const std::string& noun, const std::string& default_value = "0");

/// Names of the rows of some tensors, those of a file and those of a run.
struct RowNames {
  /// What a row is, in plural: "users".
  std::string kind = {};
  std::vector<std::string> in_file = {}, here = {};
  /// Tensors whose row i has the name i. Those that the file or the model lacks are skipped, and those that differ in
  /// other sizes are left to the check of shapes.
  std::vector<std::string> tensors = {};
  /// Further rows at the end have no name and keep their place.
  bool more_rows = false;
  /// Whether a row of this kind must be known, or one of another kind that is required.
  bool required = true;
};

/// Lets load_weights put rows into the order of this run (LoadWeightsOptions::adapt). Rows that the file lacks keep the
/// values of the model. Adds a line for the user to `facts`. Errors, also of load_weights: weights.meaning if no row is
/// known, or if the file has another number of rows than names. `where` is the file of the names.
absl::Status take_rows(const RunWeights& from, const std::string& where, const std::vector<RowNames>& rows,
                       LoadWeightsOptions& options, RunFacts& facts,
                       const std::string& hint = "start without --init_from: the rows would be those of others");

}  // namespace trainkit
