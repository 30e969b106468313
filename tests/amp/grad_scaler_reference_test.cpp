#include <cmath>
#include <limits>

#include "reference_util.h"
#include "trainkit/amp/grad_scaler.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/optimizer.h"

namespace trainkit {
namespace {

/// tests/reference/grad_scaler.py: planted().
double planted(int step) {
  for (const int inf : {5, 40, 41, 133, 240}) {
    if (step == inf) return std::numeric_limits<double>::infinity();
  }
  for (const int nan : {17, 90, 91, 92, 250}) {
    if (step == nan) return std::numeric_limits<double>::quiet_NaN();
  }
  return step >= 180 && step < 210 ? std::numeric_limits<double>::infinity() : 1.0;
}

/// Compares our run with Python's. `floor` is the lower limit of the scale; the run begins at `first_row`.
void compare(const std::vector<std::vector<std::string>>& rows, size_t first_row, double floor) {
  for (const bool capturable : {false, true}) {
    CAPTURE(floor, capturable);
    at::Tensor weight = torch::tensor({1.0f, -2.0f}).requires_grad_();
    AdamW optimizer({.lr = 0.01, .weight_decay = 0.1, .capturable = capturable});
    optimizer.add_param_group({.params = {{"weight", weight}}});
    GradScaler scaler({.init_scale = 1024.0, .growth_interval = 7, .min_scale = floor});
    int64_t applied = 0;
    double lowest = 1024;
    for (int step = 0; step < 300; ++step) {
      CAPTURE(step);
      const auto& row = rows[first_row + static_cast<size_t>(step)];
      optimizer.zero_grad();
      const at::Tensor direction = torch::tensor({std::sin(step), std::cos(step)}, at::kFloat);
      scaler.scale((weight * direction * planted(step)).sum()).backward();
      scaler.unscale_(optimizer);
      clip_grad_norm_(optimizer, 0.5);
      scaler.step(optimizer);
      scaler.update();
      const StateDict state = scaler.state_dict();
      CHECK(std::get<double>(state.at("scale")) == std::stod(row[1]));
      CHECK(std::get<int64_t>(state.at("_growth_tracker")) == std::stoll(row[2]));
      applied += row[3] == "0";
      CHECK(optimizer.step_count().item<int64_t>() == applied);
      CHECK(weight[0].item<double>() == Approx(std::stod(row[4])).epsilon(1e-6));
      CHECK(weight[1].item<double>() == Approx(std::stod(row[5])).epsilon(1e-6));
      lowest = std::min(lowest, std::get<double>(state.at("scale")));
    }
    if (floor > 0) CHECK(lowest == floor);  // the overflows reach the floor
    CHECK(applied == 300 - 40);
  }
}

TEST_CASE("GradScaler: 300 steps with planted inf and nan equal torch.amp.GradScaler's, with and without a floor") {
  if (test::python().empty()) TRAINKIT_SKIP("TRAINKIT_PYTHON is not set");
  const auto rows = test::parse_csv(test::run_reference("grad_scaler.py", "0 1 64"));
  REQUIRE(rows.size() == 3 * 300);
  compare(rows, 0, 0.0);
  compare(rows, 300, 1.0);
  compare(rows, 600, 64.0);
}

}  // namespace
}  // namespace trainkit
