// Parts that trainers of classifiers share.
#include "app/results/classification.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "test_util.h"

using namespace trainkit;

TEST_CASE("Class weights have mean 1 over the rows, and 0 for a class without rows", "[app][classification]") {
  const at::Tensor weights = class_weights({30, 10, 0, 60});
  CHECK(weights[2].item<float>() == 0);
  CHECK(weights[1].item<float>() == Approx(3 * weights[0].item<float>()));
  CHECK((weights * at::tensor({30, 10, 0, 60})).sum().item<float>() == Approx(100));
}

TEST_CASE("The losses of two shares combine to that of the whole batch, with class weights", "[app][classification]") {
  const at::Tensor scores = at::randn({12, 3}), labels = at::randint(3, {12}, at::kLong);
  const at::Tensor weights = at::tensor({0.5F, 2.0F, 1.0F});
  ClassificationLoss loss(weights, 0.1);
  const double whole = loss(scores, labels).item<double>();
  CHECK(whole ==
        Approx(at::cross_entropy_loss(scores, labels, weights, at::Reduction::Sum, -100, 0.1).item<double>() / 12));
  const double first = loss(scores.slice(0, 0, 4), labels.slice(0, 0, 4)).item<double>();
  const double second = loss(scores.slice(0, 4), labels.slice(0, 4)).item<double>();
  CHECK((4 * first + 8 * second) / 12 == Approx(whole));
  CHECK(ClassificationLoss(at::Tensor())(scores, labels).item<double>() ==
        Approx(at::cross_entropy_loss(scores, labels).item<double>()));
}

TEST_CASE("The picture of a confusion matrix has a cell for each pair and room for long names",
          "[app][classification]") {
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
