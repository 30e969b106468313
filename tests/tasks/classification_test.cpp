// The task of classifiers: losses, scores over replicas, and the files of a result.
#include <ATen/Functions.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "read_text.h"
#include "tasks/batch_of.h"
#include "tasks/classification_results.h"
#include "tasks/format_scores.h"
#include "temp_dir.h"
#include "test_util.h"
#include "trainkit/data/tensor_dataset.h"

using namespace trainkit;
using trainkit::detail::draw_confusion;
using trainkit::detail::format_scores;
using namespace trainkit::test;

namespace {

/// A task whose outputs are the field "x" of a batch.
std::shared_ptr<Task> task_of_scores(ClassificationOptions options) {
  return trainkit::detail::make_classification([](torch::nn::Module&, const Batch& batch) { return batch["x"]; },
                                               std::move(options));
}

double loss_of(const Task& task, const at::Tensor& scores, const at::Tensor& labels, bool trains = true) {
  return task.loss(scores, batch_of(scores, labels), trains).loss.item<double>();
}

}  // namespace

TEST_CASE("Class weights have mean 1 over the rows, and 0 for a class without rows", "[tasks][classification]") {
  const at::Tensor weights = class_weights({30, 10, 0, 60});
  CHECK(weights[2].item<float>() == 0);
  CHECK(weights[1].item<float>() == Approx(3 * weights[0].item<float>()));
  CHECK((weights * at::tensor({30, 10, 0, 60})).sum().item<float>() == Approx(100));
}

TEST_CASE("The losses of two shares combine to that of the whole batch, with class weights",
          "[tasks][classification]") {
  const at::Tensor scores = at::randn({12, 3}), labels = at::randint(3, {12}, at::kLong);
  const std::vector<int64_t> counts = {10, 3, 7};
  const auto task =
      task_of_scores({.classes = 3, .training_counts = counts, .weight_classes = true, .label_smoothing = 0.1});
  const double whole = loss_of(*task, scores, labels);
  CHECK(whole == Approx(at::cross_entropy_loss(scores, labels, class_weights(counts), at::Reduction::Sum, -100, 0.1)
                            .item<double>() /
                        12));
  const double first = loss_of(*task, scores.slice(0, 0, 4), labels.slice(0, 0, 4));
  const double second = loss_of(*task, scores.slice(0, 4), labels.slice(0, 4));
  CHECK((4 * first + 8 * second) / 12 == Approx(whole));
  const double plain = at::cross_entropy_loss(scores, labels).item<double>();
  CHECK(loss_of(*task_of_scores({.classes = 3}), scores, labels) == Approx(plain));
  // Evaluations of runs with other settings can be compared.
  CHECK(loss_of(*task, scores, labels, /*trains=*/false) == Approx(plain));
}

TEST_CASE("The picture of a confusion matrix has a cell for each pair and room for long names",
          "[tasks][classification]") {
  const at::Tensor counts = at::tensor({5, 1, 0, 7}, at::kLong).view({2, 2});
  const auto width = [](const std::string& svg) { return std::stoi(svg.substr(svg.find("width=\"") + 7)); };
  const std::string plain = draw_confusion(counts, {"a", "b"});
  const std::string named = draw_confusion(counts, {"Buildings-Grass-Trees-Drives", "<b>"});
  for (const char* cell : {"<title>5 of 6", "<title>1 of 6", "<title>0 of 7", "<title>7 of 7"}) {
    CHECK(plain.find(cell) != std::string::npos);
  }
  CHECK(named.find(">&lt;b&gt;</text>") != std::string::npos);
  CHECK(width(named) > width(plain) + 100);
}

namespace {

/// 7 rows of 3 classes in batches of 3 on 2 replicas, of which row 4 is predicted wrongly.
TestedRows test_seven_rows(const Task& task) {
  const at::Tensor labels = at::tensor({0, 1, 2, 0, 1, 2, 0}, at::kLong);
  at::Tensor scores = at::one_hot(labels, 3).to(at::kFloat) * 5;
  scores[4] = at::tensor({9.0F, 0.0F, 0.0F});
  const auto dataset = std::make_shared<TensorDataset>(TensorDataset({{"x", scores}, {"y", labels}}));
  auto loader = Prefetcher::create(dataset, SequentialSampler(7), {.batch_size = 3}).value();
  auto devices = DeviceReplicator::create([] { return torch::nn::Linear(1, 1).ptr(); }, {.cpu_replicas = 2}).value();
  return task.test(*devices, loader.get(), 7, Precision::kFp32, nullptr).value();
}

}  // namespace

TEST_CASE("A test scores each row once, over replicas, and keeps its probabilities in order",
          "[tasks][classification]") {
  const auto task = task_of_scores({.labels = {"a", "b", "c"}, .training_counts = {1, 1, 5}});
  const TestedRows tested = test_seven_rows(*task);
  CHECK(tested.scores.at("accuracy") == Approx(6.0 / 7));
  CHECK(tested.scores.at("unreadable") == 0);
  CHECK(tested.predictions.argmax(1).equal(at::tensor({0, 1, 2, 0, 0, 2, 0}, at::kLong)));
  CHECK(at::allclose(tested.predictions.sum(1), at::ones({7})));
  CHECK(tested.read.all().item<bool>());
}

TEST_CASE("A result lists scores, classes, rows and those that the model got wrong", "[tasks][classification]") {
  const TempDir dir;
  const auto label = [](int64_t row) { return row % 3; };
  const auto task = task_of_scores({.labels = {"a", "b,c", "<d>"},
                                    .training_counts = {1, 1, 5},
                                    .scores = {{"accuracy", "accuracy"}, {"majority", "most frequent:", {}, true}},
                                    .class_word = "label",
                                    .row_name = [](int64_t row) { return "row " + std::to_string(row); },
                                    .label_of = label});
  TestedRows tested = test_seven_rows(*task);
  tested.scores["added"] = 0.5;
  ResultPage page;
  REQUIRE(task->write(dir.path().string(), tested, page).ok());
  REQUIRE(page.write(dir.path().string()).ok());
  const auto scores = nlohmann::json::parse(read_text(dir / "scores.json"));
  CHECK(scores.at("rows") == 7);
  CHECK(scores.at("added") == 0.5);
  CHECK(scores.at("majority").get<double>() == Approx(2.0 / 7));
  CHECK(scores.at("labels")[1].at("name") == "b,c");
  CHECK(scores.at("labels")[1].at("recall") == 0.5);
  CHECK(scores.at("confusion")[1] == std::vector<int64_t>{1, 1, 0});
  const std::string csv = read_text(dir / "predictions.csv");
  CHECK_THAT(csv, Catch::StartsWith("row,label,predicted,p_a,\"p_b,c\",p_<d>\n"));
  CHECK_THAT(csv, Catch::Contains("row 4,\"b,c\",a,0.9"));
  const std::string report = read_text(dir / "report.json");
  CHECK_THAT(report,
             Catch::Contains("Wrong, the surest first") && Catch::Contains("7 test rows, most frequent: 28.57%"));
  CHECK_THAT(task->table(tested),
             Catch::Contains("| label | rows | recall |") && Catch::Contains("| b,c | 2 | 50.00% |"));
  CHECK(format_scores(task->score_names(), tested.scores) == "accuracy 85.71%  (most frequent: 28.57%)");
}

TEST_CASE("Scores of several runs are shown with their deviation", "[tasks]") {
  const std::vector<ScoreName> names = {{"oa", "oa"},
                                        {"kappa", "kappa", ScoreName::Kind::kNumber},
                                        {"leak", "leak", ScoreName::Kind::kPercent, true},
                                        {"unreadable", "unreadable", ScoreName::Kind::kCount, true}};
  Metrics scores = {{"oa", 0.99612}, {"kappa", 0.9951}, {"leak", 0.972}, {"unreadable", 0}};
  CHECK(format_scores(names, scores) == "oa 99.61%  kappa 0.9951  (leak 97.20%)");
  scores["unreadable"] = 2;
  CHECK(format_scores(names, scores) == "oa 99.61%  kappa 0.9951  (leak 97.20%, unreadable 2)");
  scores["unreadable"] = 0;
  for (const char* name : {"oa", "kappa", "leak"}) scores[std::string(name) + "_std"] = 0.001;
  CHECK(format_scores(names, scores) == "oa 99.61 +- 0.10%  kappa 0.9951 +- 0.0010  (leak 97.20 +- 0.10%)");
}
