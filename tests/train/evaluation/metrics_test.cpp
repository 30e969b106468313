// Metrics are the same for any split of the rows, and equal to torchmetrics' and scikit-learn's.
#include "trainkit/train/metrics.h"

#include <ATen/ATen.h>

#include <cmath>
#include <fstream>
#include <map>

#include "distributed/rank_threads.h"
#include "reference_util.h"
#include "tasks/batch_of.h"
#include "train/loop_util.h"
#include "train/trainer_run.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

using Average = ClassificationMetricsOptions::Average;

at::Tensor float64(std::vector<double> values) { return at::tensor(values, at::kDouble); }
at::Tensor int64(std::vector<int64_t> values) { return at::tensor(values, at::kLong); }

/// Twelve rows of six classes, of which 3 and 5 do not occur.
at::Tensor classes() { return int64({0, 0, 1, 1, 2, 2, 2, 0, 1, 2, 4, 4}); }
at::Tensor found_classes() { return int64({0, 1, 1, 1, 2, 0, 2, 0, 4, 2, 4, 1}); }
/// Ten outputs with ties, and their classes.
at::Tensor outputs() { return float64({0.1, 0.4, 0.35, 0.8, 0.35, 0.6, 0.4, 0.9, 0.05, 0.4}); }
at::Tensor binary() { return int64({0, 0, 1, 1, 0, 1, 1, 1, 0, 0}); }
/// Predictions and targets of a regression.
at::Tensor predictions() { return float64({2.5, 0, 2, 8, -1.25, 3, 7.5, 0.125}); }
at::Tensor targets() { return float64({3, -0.5, 2, 7, -1, 2.5, 9, 0}); }

Metrics classified(const ClassificationMetricsOptions& options, const at::Tensor& found, const at::Tensor& truth) {
  ClassificationMetrics metrics(options);
  metrics.add(found, truth);
  return metrics.result();
}

double auroc(const at::Tensor& found, const at::Tensor& truth) {
  AUROC metric;
  metric.add(found, truth);
  return metric.result().at("auroc");
}

Metrics regressed(const at::Tensor& predicted, const at::Tensor& truth) {
  RegressionMetrics metrics;
  metrics.add(predicted, truth);
  return metrics.result();
}

void check_same(const Metrics& metrics, const Metrics& expected) {
  REQUIRE(metrics.size() == expected.size());
  for (const auto& [name, value] : expected) {
    INFO(name);
    CHECK(metrics.at(name) == Approx(value).epsilon(1e-12));
  }
}

/// All kinds of metrics of batches whose "x" are scores (B, 4), and whose "y" are classes.
std::vector<std::shared_ptr<const Score>> all_kinds() {
  return {std::make_shared<ClassificationMetrics>(ClassificationMetricsOptions{.classes = 4}),
          std::make_shared<MeanMetric>("mean_score")};
}

}  // namespace

// Constants: torchmetrics 1.9.0 with float64 inputs, on the rows above.
TEST_CASE("Metrics equal torchmetrics'", "[train][metrics]") {
  check_same(regressed(predictions(), targets()), {{"mae", 0.546875}, {"rmse", 0.7139787286747414}, {"r2", 0.9546875}});
  const double share = 8.0 / 12;
  check_same(classified({.classes = 6, .average = Average::kMicro}, found_classes(), classes()),
             {{"accuracy", share}, {"precision", share}, {"recall", share}, {"f1", share}});
  check_same(classified({.classes = 6}, found_classes(), classes()),
             {{"accuracy", share}, {"precision", share}, {"recall", 0.6458333333333333}, {"f1", 0.6488095238095237}});
  check_same(classified({.classes = 6, .average = Average::kWeighted}, found_classes(), classes()),
             {{"accuracy", share}, {"precision", 0.7083333333333333}, {"recall", share}, {"f1", 0.6785714285714286}});
  check_same(classified({.average = Average::kBinary, .threshold = 0.5, .prefix = "b_"}, outputs(), binary()),
             {{"b_accuracy", 0.8}, {"b_precision", 1}, {"b_recall", 0.6}, {"b_f1", 0.75}});
  CHECK(auroc(outputs(), binary()) == Approx(0.86).epsilon(1e-14));
  MeanMetric mean;
  mean.add(at::tensor({1.0F, 2.0F, 4.0F}), at::tensor({1, 2, 1}));
  CHECK(mean.result() == Metrics{{"mean", 2.25}});
}

TEST_CASE("Metrics equal scikit-learn's", "[train][metrics][reference]") {
  if (!python_has("sklearn")) TRAINKIT_SKIP("no Python with scikit-learn");
  const TempDir dir;
  for (const uint64_t seed : {1, 2}) {
    at::manual_seed(seed);
    at::Tensor truth = (at::rand({1500}).square() * 5).to(at::kLong);
    if (seed == 2) truth = at::where(truth == 4, 3, truth);  // predicted, but absent
    const at::Tensor found = at::where(at::rand({1500}) < 0.7, truth, at::randint(5, {1500}, at::kLong));
    const at::Tensor positive = at::randint(2, {1500}, at::kLong);
    // Rounded, so that a third of the rows is tied with another one.
    const at::Tensor output = ((at::rand({1500}, at::kDouble) + 0.4 * positive) * 500).round() / 700;
    const at::Tensor target = 1e6 + at::randn({1500}, at::kDouble);
    const at::Tensor predicted = target + 0.5 * at::randn({1500}, at::kDouble);
    std::ofstream file(dir / "rows.csv");
    file.precision(17);
    for (int64_t i = 0; i < 1500; ++i) {
      file << truth[i].item<int64_t>() << "," << found[i].item<int64_t>() << "," << positive[i].item<int64_t>() << ","
           << output[i].item<double>() << "," << target[i].item<double>() - predicted[i].item<double>() << "\n";
    }
    file.close();
    std::map<std::string, std::vector<double>> theirs;
    for (const auto& cells : parse_csv(run_reference("metrics.py", dir / "rows.csv"))) {
      for (size_t i = 1; i < cells.size(); ++i) theirs[cells[0]].push_back(std::stod(cells[i]));
    }
    const auto expected = [&](const std::string& average, double accuracy) {
      return Metrics{{"accuracy", accuracy},
                     {"precision", theirs.at(average)[0]},
                     {"recall", theirs.at(average)[1]},
                     {"f1", theirs.at(average)[2]}};
    };
    const double accuracy = theirs.at("accuracy")[0];
    INFO("seed " << seed);
    check_same(classified({.classes = 5, .average = Average::kMicro}, found, truth), expected("micro", accuracy));
    check_same(classified({.classes = 5}, found, truth), expected("macro", accuracy));
    check_same(classified({.classes = 5, .average = Average::kWeighted}, found, truth), expected("weighted", accuracy));
    const Metrics chosen = classified({.average = Average::kBinary, .threshold = 0.5}, output, positive);
    check_same(chosen, expected("binary", chosen.at("accuracy")));
    CHECK(auroc(output, positive) == Approx(theirs.at("auroc")[0]).epsilon(1e-13));
    check_same(regressed(output, target - predicted),
               {{"mae", theirs.at("mae")[0]}, {"rmse", theirs.at("rmse")[0]}, {"r2", theirs.at("r2")[0]}});
  }
}

TEST_CASE("Metrics of parts are those of the whole", "[train][metrics]") {
  at::manual_seed(3);
  const at::Tensor found = at::rand({100}, at::kDouble).mul(20).round(), truth = at::randint(2, {100}, at::kLong);
  const at::Tensor target = 1e9 + at::randn({100}, at::kDouble), predicted = target + 0.1 * at::randn({100});
  AUROC area;
  RegressionMetrics regression;
  ClassificationMetrics classes({.average = Average::kBinary, .threshold = 10});
  MeanMetric mean;
  for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {1, 40}, {40, 40}, {40, 100}}) {
    const auto part = [&, begin = begin, end = end](const at::Tensor& all) { return all.slice(0, begin, end); };
    const auto merge = [&](Score& all, auto add) {
      const auto one = all.empty_on(at::kCPU);
      add(dynamic_cast<std::remove_reference_t<decltype(all)>&>(*one));
      all.merge(*one);
    };
    merge(area, [&](Score& one) { dynamic_cast<AUROC&>(one).add(part(found), part(truth)); });
    merge(regression, [&](Score& one) { dynamic_cast<RegressionMetrics&>(one).add(part(predicted), part(target)); });
    merge(classes, [&](Score& one) { dynamic_cast<ClassificationMetrics&>(one).add(part(found), part(truth)); });
    merge(mean, [&](Score& one) { dynamic_cast<MeanMetric&>(one).add(part(found)); });
  }
  CHECK(area.result().at("auroc") == auroc(found, truth));
  CHECK(classes.result() == classified({.average = Average::kBinary, .threshold = 10}, found, truth));
  CHECK(mean.result().at("mean") == Approx(found.mean().item<double>()).epsilon(1e-14));
  const Metrics whole = regressed(predicted, target), parts = regression.result();
  // Targets around 1e9 have 7 digits of their spread left, which sums of squares would lose.
  CHECK(parts.at("r2") == Approx(whole.at("r2")).epsilon(1e-9));
  const at::Tensor near = target - 1e9;
  CHECK(parts.at("r2") == Approx(regressed(predicted - 1e9, near).at("r2")).epsilon(1e-6));
}

TEST_CASE("Metrics of replicas and ranks are those of one process", "[train][metrics]") {
  at::manual_seed(4);
  const at::Tensor found = at::rand({50}, at::kDouble).mul(8).round(), truth = at::randint(2, {50}, at::kLong);
  const auto collection = [] {
    return MetricCollection(AUROC(), RegressionMetrics(), ClassificationMetrics({.threshold = 4}), MeanMetric());
  };
  Metrics expected;
  const MetricCollection alone = collection();
  alone.update(found, batch_of(found, truth));
  REQUIRE(alone.add_scores(nullptr, expected).ok());
  CHECK(expected.size() == 9);
  for (const int64_t ranks : {2, 3}) {
    std::vector<Metrics> got(static_cast<size_t>(ranks));
    const auto texts = on_ranks(ranks, [&](ProcessGroup& group) {
      const MetricCollection parts = collection();
      // Rank 0 has no rows with three ranks.
      const int64_t first = ranks - 2, begin = group.rank() < first ? 0 : 17 * (group.rank() - first);
      const int64_t end = group.rank() < first ? 0 : group.rank() + 1 == ranks ? 50 : 17;
      parts.update(found.slice(0, begin, end), batch_of(found, truth).slice(begin, end));
      return parts.add_scores(&group, got[static_cast<size_t>(group.rank())]);
    });
    for (const std::string& text : texts) CHECK(text == "ok");
    for (const Metrics& metrics : got) {
      check_same(metrics, expected);
      CHECK(metrics == got[0]);
    }
  }
}

TEST_CASE("A validation loss collects metrics over micro-batches and replicas", "[train][metrics]") {
  for (const int64_t replicas : {1, 3}) {
    CAPTURE(replicas);
    auto devices = DeviceReplicator::create([] { return TinyNet(); }, {.cpu_replicas = replicas}).value();
    auto loader = Prefetcher::create(tiny_dataset(10), SequentialSampler(10), {.batch_size = 4}).value();
    TinyNet model(std::dynamic_pointer_cast<TinyNetImpl>(devices->module()));
    model->eval();
    const MetricCollection scores(all_kinds());
    const auto loss = [scores](TinyNet& net, const Batch& batch) {
      const at::Tensor outputs = net->forward(batch["x"]);
      scores.update(outputs, batch);
      return at::cross_entropy_loss(outputs, batch["y"]);
    };
    auto whole = Prefetcher::create(tiny_dataset(10), SequentialSampler(10), {.batch_size = 10}).value();
    const Batch all = whole->next().value().value();
    const at::Tensor expected = model->forward(all["x"]).detach();
    for (int64_t pass = 0; pass < 2; ++pass) {  // the second begins anew
      Metrics metrics = evaluate(*devices, *loader, make_loss_function(loss)).value();
      REQUIRE(scores.add_scores(devices->process_group(), metrics).ok());
      CHECK(metrics.at("accuracy") ==
            Approx((expected.argmax(1) == all["y"]).to(at::kDouble).mean().item<double>()).epsilon(1e-12));
      CHECK(metrics.at("mean_score") == Approx(expected.mean().item<double>()).epsilon(1e-6));
    }
  }
}

TEST_CASE("Metrics take outputs and targets of any dtype", "[train][metrics]") {
  for (const at::ScalarType dtype : {at::kBool, at::kByte, at::kInt, at::kLong, at::kHalf, at::kFloat, at::kDouble}) {
    INFO(dtype);
    const at::Tensor truth = binary().to(dtype);
    CHECK(auroc(outputs(), truth) == Approx(0.86).epsilon(1e-14));
    CHECK(auroc(outputs().to(at::kFloat), truth.view({10, 1})) == Approx(0.86).epsilon(1e-14));
    CHECK(classified({.average = Average::kBinary, .threshold = 0.5}, outputs().view({10, 1}), truth).at("f1") == 0.75);
    CHECK(regressed(binary().to(dtype), truth).at("rmse") == 0);
    MeanMetric mean;
    mean.add(truth);
    CHECK(mean.result().at("mean") == 0.5);
  }
  // Two outputs per row are those of the classes 0 and 1.
  const at::Tensor both = at::stack({1 - outputs(), outputs()}, 1);
  CHECK(auroc(both, binary()) == Approx(0.86).epsilon(1e-14));
  CHECK(classified({.average = Average::kBinary}, both, binary()).at("f1") == 0.75);
  CHECK(auroc(at::tensor({3, 1, 2}), at::tensor({1, 0, 0})) == 1);
  // float64 outputs that float32 cannot tell apart.
  CHECK(auroc(float64({1 + 1e-12, 1}), int64({1, 0})) == 1);
  // Rows with several positions, as in segmentation.
  const at::Tensor maps = at::rand({2, 3, 4});
  CHECK(classified({.classes = 3}, maps, maps.argmax(1)).at("accuracy") == 1);
  // Weights of rows.
  MeanMetric weighted("loss", "y");
  weighted.update(float64({1, 3, NAN, 7, 5, 5}).view({3, 2}), batch_of(at::zeros({3}), float64({2, 0, 1})));
  CHECK(weighted.result().at("loss") == Approx(18.0 / 6));
}

TEST_CASE("Metrics of NaN, of no rows and of one class are NaN", "[train][metrics]") {
  const auto all_nan = [](const Metrics& metrics) {
    for (const auto& [name, value] : metrics) {
      INFO(name);
      CHECK(std::isnan(value));
    }
  };
  all_nan(RegressionMetrics().result());
  all_nan(ClassificationMetrics({}).result());
  all_nan(AUROC().result());
  all_nan(MeanMetric().result());
  all_nan(regressed(float64({1, NAN}), float64({1, 2})));
  all_nan(regressed(float64({1, 2}), float64({1, NAN})));
  all_nan(classified({.average = Average::kBinary}, float64({1, NAN}), int64({1, 0})));
  all_nan(classified({.classes = 2}, float64({1, NAN, 0, 1}).view({2, 2}), int64({1, 1})));
  CHECK(std::isnan(auroc(float64({0.5, NAN, 0.1}), int64({1, 0, 0}))));
  CHECK(std::isnan(auroc(outputs(), at::ones({10}))));
  CHECK(std::isnan(auroc(outputs(), at::zeros({10}))));
  // Rows that do not count.
  CHECK(auroc(float64({0.5, NAN, 0.1}), int64({1, -1, 0})) == 1);
  CHECK(classified({}, float64({1, NAN}), int64({1, -100})).at("accuracy") == 1);
  // Equal targets have no spread, whatever their sum rounds to.
  CHECK(std::isnan(regressed(float64({0.1, 0.2, 0.1}), float64({0.1, 0.1, 0.1})).at("r2")));
  CHECK(regressed(float64({0, 1e-9}), float64({0, 2e-9})).at("r2") == Approx(0.5));
}

TEST_CASE("Metrics refuse sizes and classes that do not fit", "[train][metrics]") {
  RegressionMetrics regression;
  CHECK_THROWS_AS(regression.add(at::zeros({4, 2}), at::zeros({4})), c10::ValueError);
  CHECK_THROWS_AS(regression.add(at::zeros({2, 4}), at::zeros({4, 2})), c10::ValueError);
  ClassificationMetrics classes({.classes = 3});
  CHECK_THROWS_AS(classes.add(at::zeros({4, 2}), int64({0, 1, 0, 1})), c10::ValueError);
  CHECK_THROWS_AS(classes.add(at::zeros({4}), int64({0, 1, 0, 1})), c10::ValueError);
  CHECK_THROWS_AS(classes.add(at::zeros({2, 3}), int64({0, 3})), c10::IndexError);
  CHECK_THROWS_AS(classes.add(at::zeros({2, 3}), float64({0, 0.5})), c10::IndexError);
  CHECK_THROWS_AS(classes.add(at::zeros({2, 3}), float64({0, NAN})), c10::IndexError);
  CHECK_THROWS_AS(ClassificationMetrics({.classes = 3, .average = Average::kBinary}), c10::ValueError);
  AUROC area;
  CHECK_THROWS_AS(area.add(at::zeros({4, 3}), int64({0, 1, 0, 1})), c10::ValueError);
  area.add(at::zeros({2}), int64({0, 2}));
  CHECK_THROWS_AS(area.result(), c10::ValueError);
  CHECK_THROWS_AS(MetricCollection(AUROC(), AUROC()), c10::ValueError);
  CHECK_NOTHROW(MetricCollection(AUROC(), AUROC({.name = "second"})));
}
