#pragma once
/// Finds the weights of a model among the other contents of a file, under the names of the model.

#include <absl/status/statusor.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/weights/stored_tensors.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/io/weight_file.h"

namespace trainkit::detail {

/// Names of the container that holds the weights of a model, in the order of preference.
inline constexpr std::string_view kWeightsNames[] = {
    "state_dict", "model_state_dict", "model", "model_state", "model_weights", "net", "network", "weights", "module"};
/// Whether a container of this name holds other tensors of a training: "optimizer", "lr_scheduler", ...
bool is_training_name(std::string_view name);

/// The weights in a file, and the names of everything else.
struct ModelWeights {
  NamedTensors tensors;
  /// Outermost names that were not read, in file order: "epoch", "optimizer", "best_acc1".
  std::vector<std::string> left_out = {};
};

/// Reads the tensors of the container `prefix`; "" is the one of WeightFile::state_dict_prefix().
absl::StatusOr<ModelWeights> read_model_weights(const WeightFile& file, std::string prefix = {});
/// Lists the same tensors without reading them; `stored` reads them.
absl::StatusOr<ModelWeights> list_model_weights(const WeightFile& file, StoredTensors& stored, std::string prefix = {});

/// "w.pt also has epoch, optimizer and 3 more, which were left out"
std::string describe_left_out(const std::string& path, const std::vector<std::string>& left_out);

/// Returns `names` without the parts that PyTorch's wrappers add: "module." (DataParallel, AveragedModel) and "model."
/// (Lightning) before all of them, and "_orig_mod." (torch.compile) and those of FSDP and activation checkpointing
/// anywhere. A prefix stays where more names are known with it; "model." also where as many are.
std::vector<std::string> without_wrappers(std::vector<std::string> names,
                                          const std::function<bool(const std::string&)>& is_known);

/// Renames the tensors as without_wrappers() does.
void strip_wrappers(ModelWeights& weights, const std::function<bool(const std::string&)>& is_known);

}  // namespace trainkit::detail
