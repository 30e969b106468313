#include <cmath>
#include <random>
#include <vector>

#include "monitor/monitor_series.h"
#include "test_util.h"

namespace trainkit {
namespace {

/// `count` values: `low` for the first `part` of every `period` values, `high` for the rest, with noise.
std::vector<double> square(int count, double period, double part, double low, double high, double noise = 0,
                           unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> bell(0, 1);
  std::vector<double> values;
  for (int i = 0; i < count; ++i) {
    const double phase = std::fmod(i + 0.37 * seed, period) / period;
    values.push_back((phase < part ? low : high) + noise * bell(random));
  }
  return values;
}

TEST_CASE("A swing's extremes and period are found for any phase", "[logging][swing]") {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    const auto swing = find_swing(square(60, 9, 0.5, 0.09, 0.90, 0, seed));
    INFO("seed " << seed);
    REQUIRE(swing);
    CHECK(swing->min == Approx(0.09));
    CHECK(swing->max == Approx(0.90));
    CHECK(swing->period == Approx(9).margin(0.5));
  }
}

TEST_CASE("A swing from 9 to 90 percent is found in noise, with 27 values or with 600", "[logging][swing]") {
  const int count = GENERATE(27, 60, 600);
  int found = 0;
  for (unsigned seed = 1; seed <= 200; ++seed) {
    const auto swing = find_swing(square(count, 9, 0.5, 0.09, 0.90, 0.1, seed));
    found += swing && std::abs(swing->period - 9) < 1;
  }
  INFO(count << " values: " << found << " of 200");
  CHECK(found >= 190);
}

TEST_CASE("A period between two values, and one much longer than its dip, are found", "[logging][swing]") {
  CHECK(find_swing(square(200, 6.5, 0.5, 0.2, 0.9))->period == Approx(6.5).margin(0.6));
  CHECK(find_swing(square(200, 20, 0.15, 0.2, 0.9))->period == Approx(20).margin(0.5));
  CHECK(find_swing(square(40, 2, 0.5, 0.2, 0.9))->period == Approx(2).margin(0.1));
}

TEST_CASE("A flat line, a short series and a small ripple have no swing", "[logging][swing]") {
  CHECK_FALSE(find_swing(std::vector<double>(100, 0.83)));
  CHECK_FALSE(find_swing(std::vector<double>()));
  CHECK_FALSE(find_swing(square(7, 3, 0.5, 0.1, 0.9)));
  CHECK_FALSE(find_swing(square(100, 9, 0.5, 0.80, 0.90)));
}

TEST_CASE("Noise of any length is reported as a swing in fewer than 1 % of the series", "[logging][swing]") {
  const int count = GENERATE(12, 30, 120, 600);
  int found = 0;
  for (unsigned seed = 1; seed <= 1000; ++seed)
    found += find_swing(square(count, 9, 0.5, 0.5, 0.5, 0.25, seed)).has_value();
  INFO(count << " values: " << found << " of 1000");
  CHECK(found < 10);
}

TEST_CASE("A drift, a single step and a single outlier are not a swing", "[logging][swing]") {
  std::vector<double> drift, step, outlier(100, 0.9);
  for (int i = 0; i < 100; ++i) {
    drift.push_back(i / 100.0);
    step.push_back(i < 40 ? 0.1 : 0.9);
  }
  outlier[17] = 0;
  CHECK_FALSE(find_swing(drift));
  CHECK_FALSE(find_swing(step));
  CHECK_FALSE(find_swing(outlier));
}

}  // namespace
}  // namespace trainkit
