#include "monitor/swing.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace trainkit {
namespace {

double percentile(std::vector<double> values, double share) {
  const auto at = values.begin() + static_cast<ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

/// Returns Pearson's correlation of the series with itself shifted by `lag`. 0 if one of the two parts is constant.
double correlation(std::span<const double> values, size_t lag) {
  const size_t count = values.size() - lag;
  double x = 0, y = 0, xx = 0, yy = 0, xy = 0;
  for (size_t i = 0; i < count; ++i) {
    const double a = values[i], b = values[i + lag];
    x += a, y += b, xx += a * a, yy += b * b, xy += a * b;
  }
  const auto n = static_cast<double>(count);
  const double vary = (n * xx - x * x) * (n * yy - y * y);
  return vary > 1e-12 ? (n * xy - x * y) / std::sqrt(vary) : 0;
}

/// Returns the position of the maximum of the parabola through three values at -1, 0 and 1.
double peak_offset(double before, double here, double after) {
  const double bend = before - 2 * here + after;
  return bend < 0 ? std::clamp(0.5 * (before - after) / bend, -0.5, 0.5) : 0;
}

}  // namespace

std::optional<Swing> find_swing(std::span<const double> values, double least) {
  constexpr size_t kFew = 8;
  if (values.size() < kFew) return std::nullopt;
  const std::vector<double> all(values.begin(), values.end());
  Swing swing{.min = percentile(all, 0.05), .max = percentile(all, 0.95)};
  if (swing.max - swing.min < least) return std::nullopt;

  const size_t longest = values.size() / 2;
  std::vector<double> r(longest + 2, 0.0);
  for (size_t lag = 1; lag < r.size(); ++lag) r[lag] = correlation(values, lag);
  const double strongest = *std::max_element(r.begin() + 2, r.end());
  bool dropped = false;  // a slow drift correlates at every short lag and is not periodic
  for (size_t lag = 1; lag <= longest; ++lag) {
    const double error = 1 / std::sqrt(static_cast<double>(values.size() - lag));
    dropped = dropped || r[lag] < error;
    // A multiple of the period correlates as well, a fraction of it only weakly.
    const bool peak = lag >= 2 && r[lag] >= r[lag - 1] && r[lag] >= r[lag + 1];
    if (dropped && peak && r[lag] >= std::max(0.5, 3.5 * error) && r[lag] >= 0.6 * strongest) {
      swing.period = static_cast<double>(lag) + peak_offset(r[lag - 1], r[lag], r[lag + 1]);
      return swing;
    }
  }
  return std::nullopt;
}

}  // namespace trainkit
