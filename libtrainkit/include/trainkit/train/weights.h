#pragma once
/// Lists and loads the weights of a model by name.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/core/fs.h"
#include "trainkit/io/safetensors.h"

namespace torch::nn {
class Module;
}

namespace trainkit {

/// Lists parameters and buffers of `model` by name, in the order of the model. A tensor registered twice (a tied head)
/// is listed once, under its first name. The tensors share the model's memory.
NamedTensors named_tensors(const torch::nn::Module& model);

/// Copies `tensors` into the parameters and buffers of `model`. Checks all of them before it changes any, as
/// copy_named_tensors does. `where` is the file that errors name.
absl::Status load_named_tensors(torch::nn::Module& model, const NamedTensors& tensors, const std::string& where = {});

struct LoadWeightsOptions {
  /// Container in the file that holds the model, such as "ema.model". Empty: detected (WeightFile::state_dict_prefix).
  std::string prefix = {};
  /// Renaming rules (from, to), applied last: replaces the prefix `from` of a name by `to`. Only the first matching
  /// rule is applied, once.
  std::vector<std::pair<std::string, std::string>> rename = {};
  /// Names or prefixes of names that are not loaded, after renaming: those tensors of the file are ignored, and those
  /// of the model keep their values. {"fc."} leaves out a head for another number of classes. Each must occur in the
  /// file or in the model.
  std::vector<std::string> skip = {};
  /// Loads the tensors that match by name and shape, and leaves the rest of the model unchanged.
  bool partial = false;
  /// Changes the tensors of the file, under the names of the model, before they are compared with those of the model:
  /// puts rows into another order, for example. Its error is returned. All tensors of the file are in memory then.
  std::function<absl::Status(NamedTensors& file, const NamedTensors& model)> adapt = nullptr;
  /// Accepts non-finite weights. A run that starts from them fails later, far from the cause.
  bool allow_nonfinite = false;
};

/// Result of load_weights. The lists of names are empty unless `partial` was set.
struct LoadedWeights {
  int64_t loaded = 0;
  /// Outermost names in a PyTorch file that are not weights and were not read: "epoch", "optimizer", "best_acc1".
  std::vector<std::string> left_out = {};
  /// Names in the model that the file lacks.
  std::vector<std::string> missing = {};
  /// Names in the file that the model lacks.
  std::vector<std::string> unexpected = {};
  /// Names in both, with different shapes.
  std::vector<std::string> misshapen = {};
};

/// Loads a model's weights from a file of any format that WeightFile reads: safetensors, .pt, .pth, .bin, detected by
/// content. Of a checkpoint with an optimizer, scores or the state of generators only the weights are read; see
/// WeightFile::state_dict_prefix and LoadedWeights::left_out. A tensor that the model holds under two names (a tied
/// head) may be in the file under either or both. Converts between floating-point types.
///
/// Reads the file twice, to check its values and to copy them, in pieces of at most 8 MiB. Needs no more memory than
/// the model, except for a tensor that is not contiguous in a PyTorch file or in the model.
///
/// Parts of names that PyTorch's wrappers add are removed: "module." (DataParallel, AveragedModel) and "model."
/// (Lightning) if every name begins with it and the model's names do not; "_orig_mod." (torch.compile),
/// "_fsdp_wrapped_module." and "_checkpoint_wrapped_module." anywhere. The num_batches_tracked of a BatchNorm layer is
/// 0 if the file lacks it, as in files from before PyTorch 0.4.1.
///
/// Errors (exit code 5; nothing has changed then, unless the second reading fails where the first succeeded):
/// - those of reading the file;
/// - unless partial, those of load_named_tensors: missing or unexpected names and different shapes, up to five of each;
/// - weights.match for a rule of `skip` that matches no name;
/// - if partial, that no tensor matches;
/// - weights.nonfinite, which names a parameter with infinity or NaN, or a buffer with NaN (masks contain -infinity),
///   in the file or after the conversion to the model's dtype.
absl::StatusOr<LoadedWeights> load_weights(torch::nn::Module& model, const std::string& path,
                                           const LoadWeightsOptions& options = {}, const Fs& fs = Fs::posix());

}  // namespace trainkit
