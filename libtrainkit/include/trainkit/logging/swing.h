#pragma once
/// A load that goes up and down in a steady rhythm.

#include <optional>
#include <span>

namespace trainkit {

/// A periodic swing of a series of values taken at equal distances.
struct Swing {
  /// The 5th and the 95th percentile: a single outlier counts for neither.
  double min = 0;
  double max = 0;
  /// In values of the series; a fraction between two of them is interpolated.
  double period = 0;
};

/// The swing in `values`, if there is one: those percentiles lie at least `least` apart, and the series
/// repeats itself.
///
///   find_swing(utilisation_per_second)     // {0.09, 0.90, 9.0}: every nine seconds
///
/// The period is the first lag at which the series correlates with itself (Pearson, over the values that both have) by
/// more than noise of that length would (3.5 standard errors, at least 0.5), after it has not at a shorter one; so it
/// is at least 2 values long and fits twice into the series. Noise is called a swing in fewer than one of a hundred
/// series, a flat line never. Takes time in the square of their number: keep to some hundreds.
std::optional<Swing> find_swing(std::span<const double> values, double least = 0.2);

}  // namespace trainkit
