// The task of regressions: losses, scores in the target's units, and the files of a result.
#include <ATen/Functions.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "read_text.h"
#include "tasks/batch_of.h"
#include "tasks/regression_score.h"
#include "temp_dir.h"
#include "test_util.h"

using namespace trainkit;
using trainkit::detail::RegressionScore;
using namespace trainkit::test;

namespace {

std::shared_ptr<Task> task_of_values(RegressionOptions options) {
  return trainkit::detail::make_regression([](torch::nn::Module&, const Batch& batch) { return batch["x"]; },
                                           std::move(options));
}

/// Prices and predictions (as deviations from 200 in units of 50).
const RegressionOptions kPrices = {.target = "price", .unit = "EUR", .mean = 200, .deviation = 50};
at::Tensor prices() { return at::tensor({150.0F, 250.0F, 200.0F, 300.0F}); }
at::Tensor predictions() { return at::tensor({-1.0F, 1.2F, 0.2F, 1.0F}).view({4, 1}); }  // 150, 260, 210, 250

}  // namespace

TEST_CASE("The loss of a regression is of standardised targets, its scores are in their units", "[tasks][regression]") {
  const auto task = task_of_values(kPrices);
  const Batch batch = batch_of(predictions(), prices());
  const double squares = 0 + 100 + 100 + 2500;
  CHECK(task->loss(predictions(), batch, true).loss.item<double>() == Approx(squares / 4 / 2500));
  RegressionScore score(kPrices);
  score.update(predictions(), batch);
  const Metrics scores = score.result();
  CHECK(scores.at("rmse") == Approx(std::sqrt(squares / 4)));
  CHECK(scores.at("mae") == Approx((10.0 + 10 + 50) / 4));
  CHECK(scores.at("r2") == Approx(1 - squares / (75 * 75 + 25 * 25 + 25 * 25 + 75 * 75)));
  // Parts add up to the whole.
  RegressionScore first(kPrices), rest(kPrices);
  first.update(predictions().slice(0, 0, 1), batch.slice(0, 1));
  rest.update(predictions().slice(0, 1), batch.slice(1, 4));
  first.merge(rest);
  CHECK(first.result().at("r2") == Approx(scores.at("r2")));
}

TEST_CASE("The coefficient of determination keeps its digits far from 0 and has none for equal targets",
          "[tasks][regression]") {
  RegressionScore score({.mean = 1e7, .deviation = 1});
  const at::Tensor y = at::tensor({1e7, 1e7 + 1, 1e7 + 2}).to(at::kFloat), off = at::tensor({0.5F, 1.0F, 1.5F});
  score.update(off, batch_of(off, y));
  CHECK(score.result().at("r2") == Approx(1 - 0.5 / 2));
  // The loss of exact predictions is 0, although float32 cannot hold the mean.
  const auto far = task_of_values({.mean = 1e8 + 0.5, .deviation = 1});
  const at::Tensor exact = at::tensor({-0.5F, 0.5F}), years = at::tensor({1e8, 1e8 + 1}, at::kDouble);
  CHECK(far->loss(exact, batch_of(exact, years), true).loss.item<double>() == 0);
  RegressionScore equal({});
  const at::Tensor ones = at::ones({3});
  equal.update(ones, batch_of(ones, ones));
  CHECK(std::isnan(equal.result().at("r2")));
  CHECK_THROWS_AS(task_of_values({.deviation = 0}), c10::ValueError);
}

TEST_CASE("A result of a regression lists each row, and the largest errors", "[tasks][regression]") {
  const TempDir dir;
  const auto task = task_of_values(kPrices);
  TestedRows tested{.predictions = at::tensor({150.0, 260.0, 210.0, 250.0}, at::kDouble),
                    .truth = prices().to(at::kDouble),
                    .read = at::tensor({1, 1, 0, 1}).to(at::kBool),
                    .scores = {{"rmse", 26.0}, {"mae", 17.5}, {"r2", 0.8}, {"unreadable", 1}}};
  ResultPage page;
  REQUIRE(task->write(dir.path().string(), tested, page).ok());
  REQUIRE(page.write(dir.path().string()).ok());
  CHECK(read_text(dir / "predictions.csv") ==
        "row,price,predicted,error\n0,150,150,0\n1,250,260,10\n2,,,\n3,300,250,-50\n");
  const std::string report = read_text(dir / "report.json");
  CHECK_THAT(report, Catch::Contains("RMSE (EUR)") && Catch::Contains("3 test rows, unreadable 1"));
  CHECK(report.find("\"3\",\n") < report.find("\"1\",\n"));  // the largest error comes first
  CHECK(nlohmann::json::parse(read_text(dir / "scores.json")).at("unit") == "EUR");
}
