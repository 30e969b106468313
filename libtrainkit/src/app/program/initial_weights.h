#pragma once
/// Finds the weights of --init_from, and puts their rows into the order of this run by the names of the rows.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainkit/app/app.h"
#include "trainkit/app/predictor.h"
#include "trainkit/io/safetensors.h"

namespace trainkit::detail {

/// Finds the weights of --init_from: a file, or the best weights or a checkpoint of a run folder, verified. `run` is
/// the folder of the run that holds the file. Errors: exit code 5.
absl::StatusOr<RunWeights> find_initial_weights(const std::string& path);

/// Loads --init_from into a new model, as `app` adapts the weights. Adds lines for the user to `facts`.
absl::Status load_initial_weights(App& app, RunContext& context, torch::nn::Module& model, RunFacts& facts);

/// Returns the path of a file next to the weights, or in the folder of their run; "" if there is none.
std::string file_beside(const RunWeights& weights, const std::string& name);

/// Returns a setting in the config.yaml of the run that wrote the weights, as text; nullopt if it is not known.
std::optional<std::string> setting_beside(const RunWeights& weights, const std::string& name);

/// weights.meaning (exit code 5): a tensor means something else in the file than in this run.
absl::Status other_meaning(const std::string& where, const std::string& field, const std::string& problem,
                           const std::string& got = {}, const std::string& expected = {}, const std::string& hint = {});

/// Checks the number of heads, which no shape shows, against the setting of the run that wrote the weights, if it is
/// known. `default_heads` replaces a setting of 0. weights.meaning if they differ.
absl::Status check_heads(const RunWeights& weights, const std::string& setting, int64_t heads,
                         int64_t default_heads = 0);

/// Rows of tensors by name: those of a file, and those of a run.
struct RowNames {
  /// What a row is, in plural: "users".
  std::string kind = {};
  std::vector<std::string> in_file = {}, here = {};

  /// Number of rows here that the file has.
  int64_t known() const;
  /// "28 of 30 users"
  std::string describe() const;
};

/// Puts the rows of the file's tensors `names` into the order of this run. Rows that the file lacks keep the values of
/// the model. Tensors that the file or the model lacks are skipped, and those that differ in other sizes are left to
/// the check of shapes. `more_rows` allows rows without a name at the end, which keep their place. weights.meaning if
/// the file has another number of rows than names; `where` is the file of the names.
absl::Status take_rows(NamedTensors& file, const NamedTensors& model, const RowNames& rows,
                       const std::vector<std::string>& names, const std::string& where, bool more_rows = false);

}  // namespace trainkit::detail
