#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trainkit/logging/logger.h"

namespace trainkit::detail {

/// Returns the values of a record under the names that TensorBoard and W&B show, not yet escaped: `<split>/<name>`, and
/// `machine/<name>` for the fields of docs/tuning.md, which only training records have. A value per GPU has the number
/// of the GPU at its end. `<split>/lr` is the learning rate of the first parameter group; group i adds `<split>/lr/<i>`
/// only if it differs from those before it.
std::vector<std::pair<std::string, double>> chart_series(const LogRecord& record);

}  // namespace trainkit::detail
