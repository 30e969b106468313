#pragma once
/// Exchanges the state of Adam and AdamW with Python, in files of torch.save.

#include <absl/status/status.h>

#include <string>

#include "trainkit/core/fs.h"
#include "trainkit/optim/optimizer.h"

namespace trainkit {

/// Writes the state_dict() of torch.optim, keyed by parameter names instead of numbers, as torch.distributed.checkpoint
/// does. To load it in Python, with parameters and groups in any order:
///
///   from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict
///   set_optimizer_state_dict(model, optimizer, torch.load(path, weights_only=True))
///
/// optimizer.load_state_dict() accepts it too if that optimizer has the same groups with the parameters in this order.
/// Reads from the device. Errors: kUnimplemented for SGD; exit code 6 for the disk.
absl::Status save_torch_optimizer(const Fs& fs, const std::string& path, const Optimizer& optimizer);

/// Loads exp_avg, exp_avg_sq and step of every parameter. Learning rate, betas and other settings of the optimizer do
/// not change.
///
/// The file contains the state_dict() of Python's Adam or AdamW, alone or under the key "optimizer",
/// "optimizer_state_dict" or "optim" of a checkpoint. Parameters are identified by names as above, or by the
/// "param_names" that an optimizer built from model.named_parameters() saves (PyTorch 2.6 and later). The prefix
/// "module." is removed if all names have it. Numbers without names are an error, since they depend on the order in
/// which the Python program passed the parameters.
///
/// Errors (exit code 5; nothing has changed then): those of TorchFile; weights.optimizer, which names a parameter whose
/// state is missing, unexpected or of another shape.
absl::Status load_torch_optimizer(Optimizer& optimizer, const std::string& path, const Fs& fs = Fs::posix());

}  // namespace trainkit
