#pragma once
/// Detects a periodic swing in a series of values.

#include <optional>
#include <span>

#include "trainkit/monitor/monitor.h"

namespace trainkit {

/// Finds a periodic swing in `values`: the percentiles differ by at least `least`, and the series repeats itself.
///
///   find_swing(utilisation_per_second)     // {0.09, 0.90, 9.0}: every nine seconds
///
/// The period is the first lag whose autocorrelation (Pearson, over the overlapping values) exceeds the level of noise:
/// 3.5 standard errors, at least 0.5. It must have been below that level at a shorter lag. So a period is at least 2
/// samples and fits twice into the series.
///
/// Noise is reported as a swing in fewer than one of a hundred series, a constant series never. Runs in quadratic time:
/// use some hundreds of values.
std::optional<Swing> find_swing(std::span<const double> values, double least = 0.2);

}  // namespace trainkit
