#pragma once
/// A model's weights by name.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/core/fs.h"
#include "trainkit/io/safetensors.h"

namespace torch::nn {
class Module;
}

namespace trainkit {

/// Parameters and buffers of `model` by name, in the order of the model; a tensor registered twice (a tied head) stands
/// once, under its first name. The tensors share the model's memory.
NamedTensors named_tensors(const torch::nn::Module& model);

/// Copies `tensors` into the parameters and buffers of `model`, as copy_named_tensors does: all are checked before any
/// is changed. `where` is the file to blame.
absl::Status load_named_tensors(torch::nn::Module& model, const NamedTensors& tensors, const std::string& where = {});

struct LoadWeightsOptions {
  /// The container of the file that is the model's, such as "ema.model". Empty finds it
  /// (WeightFile::state_dict_prefix).
  std::string prefix = {};
  /// Rules (from, to), applied last: a name that begins with `from` begins with `to` instead. The first that fits is
  /// applied, once.
  std::vector<std::pair<std::string, std::string>> rename = {};
  /// Loads what fits by name and shape and leaves the rest of the model as it is.
  bool partial = false;
  /// Takes weights that are not finite numbers. A run from them could only fail later, far from the cause.
  bool allow_nonfinite = false;
};

/// What load_weights found; all but `loaded` is empty unless it was partial.
struct LoadedWeights {
  int64_t loaded = 0;
  /// Of the model, not in the file.
  std::vector<std::string> missing = {};
  /// Of the file, not in the model.
  std::vector<std::string> unexpected = {};
  /// In both, with shapes that differ.
  std::vector<std::string> misshapen = {};
};

/// Loads a model's weights from a file of any format that WeightFile reads: safetensors, .pt, .pth, .bin, by content.
/// "module." is cut off if every name begins with it (DataParallel). A tensor that the model holds under two names
/// (a tied head) may stand in the file under either or both. Values are converted between floating-point types.
///
/// Errors (exit code 5) are those of reading and, unless partial, of load_named_tensors: names that are missing or left
/// over and shapes that differ, up to 20 of each; of a partial load, that nothing fits; weights.nonfinite, which names
/// a parameter that holds infinity or NaN, or a buffer that holds NaN (masks are made of -infinity). Nothing was
/// changed then.
absl::StatusOr<LoadedWeights> load_weights(torch::nn::Module& model, const std::string& path,
                                           const LoadWeightsOptions& options = {}, const Fs& fs = Fs::posix());

}  // namespace trainkit
