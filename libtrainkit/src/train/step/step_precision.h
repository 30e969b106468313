#pragma once
// Which precisions a model can be trained in.

#include <string>

#include "trainkit/distributed/device_replicator.h"
#include "trainkit/train/step_options.h"

namespace trainkit::detail {

/// Returns why steps in `precision` are impossible on these devices, or with this model; empty if they are possible.
std::string precision_problem(Precision precision, const DeviceReplicator& devices);

}  // namespace trainkit::detail
