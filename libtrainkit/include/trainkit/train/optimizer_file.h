#pragma once
/// The state of Adam and AdamW in and out of Python, as files of torch.save.

#include <absl/status/status.h>

#include <string>

#include "trainkit/core/fs.h"
#include "trainkit/optim/optimizer.h"

namespace trainkit {

/// Writes what torch.optim's state_dict() holds, with the names of parameters where Python has their numbers, as
/// torch.distributed.checkpoint does. In Python, whatever the order of the parameters and groups there:
///
///   from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict
///   set_optimizer_state_dict(model, optimizer, torch.load(path, weights_only=True))
///
/// optimizer.load_state_dict() takes it too if the optimizer there has the same groups with parameters in this order.
/// Reads from the device. kUnimplemented for SGD; errors of the disk: exit code 6.
absl::Status save_torch_optimizer(const Fs& fs, const std::string& path, const Optimizer& optimizer);

/// Takes over exp_avg, exp_avg_sq and step of every parameter; learning rate, betas and the like stay the optimizer's.
/// The file holds the state_dict() of Python's Adam or AdamW, alone or as "optimizer", "optimizer_state_dict" or
/// "optim" of a checkpoint, with the parameters' names as above or as an optimizer of model.named_parameters() saves
/// them ("param_names", PyTorch 2.6 and later); "module." before all of them is cut off. Numbers alone are an error:
/// they depend on the order in which Python's program gave the parameters.
///
/// Errors (exit code 5), after which nothing was changed: those of TorchFile; weights.optimizer, which names a
/// parameter whose state is missing, left over or misshapen.
absl::Status load_torch_optimizer(Optimizer& optimizer, const std::string& path, const Fs& fs = Fs::posix());

}  // namespace trainkit
