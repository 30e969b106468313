#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "test_util.h"
#include "trainkit/train/evaluate.h"

using namespace trainkit;

TEST_CASE("Counts and scores equal those calculated by hand", "[train][confusion_matrix]") {
  ConfusionMatrix confusion(3);
  confusion.add(at::tensor({0, 0, 0, 1, 1, 2}, at::kLong), at::tensor({0, 0, 1, 1, 1, 0}, at::kLong));
  confusion.add(at::tensor({2, -1}, at::kLong), at::tensor({2, 0}, at::kLong));  // the second row has no class
  const at::Tensor expected = at::tensor({2, 1, 0, 0, 2, 0, 1, 0, 1}, at::kLong).view({3, 3});
  CHECK(confusion.counts().equal(expected));
  const ClassificationScores scores = classification_scores(confusion.counts());
  CHECK(scores.rows == 7);
  CHECK(scores.oa == Approx(5.0 / 7));
  CHECK(scores.aa == Approx((2.0 / 3 + 1 + 0.5) / 3));
  // by chance: (3 * 3 + 2 * 3 + 2 * 1) / 49
  CHECK(scores.kappa == Approx((5.0 / 7 - 17.0 / 49) / (1 - 17.0 / 49)));
  CHECK(scores.classes[0].precision == Approx(2.0 / 3));
  CHECK(scores.classes[2].precision == Approx(1.0));
  CHECK(scores.classes[2].recall == Approx(0.5));
  CHECK(scores.classes[2].f1 == Approx(2.0 / 3));
}

TEST_CASE("A class without rows is left out of averages, and an empty matrix has no score",
          "[train][confusion_matrix]") {
  ConfusionMatrix confusion(3);
  const ClassificationScores none = classification_scores(confusion.counts());
  CHECK(none.rows == 0);
  CHECK(std::isnan(none.oa));
  CHECK(std::isnan(none.aa));
  CHECK(std::isnan(none.kappa));
  CHECK(std::isnan(none.weighted_f1));
  CHECK(std::isnan(none.macro_f1));
  confusion.add(at::tensor({0, 1}, at::kLong), at::tensor({0, 2}, at::kLong));
  const ClassificationScores scores = classification_scores(confusion.counts());
  CHECK(scores.aa == Approx(0.5));
  CHECK(scores.weighted_f1 == Approx(0.5));
  CHECK(scores.macro_f1 == Approx(1.0 / 3));  // class 2 was predicted but does not occur
  CHECK(scores.classes[2].recall == 0);
  CHECK(scores.classes[2].precision == 0);
  CHECK(scores.kappa == Approx((0.5 - 0.25) / 0.75));
}

TEST_CASE("Adding matrices gives the counts of all rows", "[train][confusion_matrix]") {
  at::manual_seed(3);
  const at::Tensor truth = at::randint(-1, 5, {1000}, at::kLong), predicted = at::randint(5, {1000}, at::kLong);
  ConfusionMatrix whole(5), first(5), second(5);
  whole.add(truth, predicted);
  first.add(truth.slice(0, 0, 300), predicted.slice(0, 0, 300));
  second.add(truth.slice(0, 300), predicted.slice(0, 300));
  first.add(second);
  CHECK(first.counts().equal(whole.counts()));
  CHECK(whole.counts().sum().item<int64_t>() == (truth >= 0).sum().item<int64_t>());
}

TEST_CASE("Labels out of range and mismatched shapes are refused", "[train][confusion_matrix]") {
  CHECK_THROWS_AS(ConfusionMatrix(0), c10::ValueError);
  ConfusionMatrix confusion(3);
  const at::Tensor zero = at::zeros({1}, at::kLong);
  CHECK_THROWS_AS(confusion.add(zero, at::zeros({2}, at::kLong)), c10::ValueError);
  CHECK_THROWS_AS(confusion.add(zero, at::zeros({1})), c10::ValueError);
  CHECK_THROWS(confusion.add(zero, zero + 3));  // not counted as class 0 of the next row
  CHECK_THROWS(confusion.add(zero, zero - 1));
  CHECK_THROWS(confusion.add(zero + 3, zero));
  CHECK(confusion.counts().sum().item<int64_t>() == 0);
  CHECK_THROWS_AS(confusion.add(ConfusionMatrix(2)), c10::ValueError);
}

TEST_CASE("A class out of range is an error that names it, except in a row without a class",
          "[train][confusion_matrix]") {
  ConfusionMatrix confusion(5);
  const auto classes = [](std::vector<int64_t> values) { return at::tensor(values, at::kLong); };
  CHECK_THROWS_WITH(confusion.add(classes({0, 5}), classes({0, 0})),
                    Catch::Contains("true class 5 of row 1 is out of range for 5 classes"));
  CHECK_THROWS_WITH(confusion.add(classes({0, 1}), classes({7, 0})),
                    Catch::Contains("predicted class 7 of row 0 is out of range for 5 classes"));
  CHECK_THROWS_AS(confusion.add(classes({1}), classes({-1})), c10::IndexError);
  confusion.add(classes({-1}), classes({9}));
  CHECK(confusion.counts().sum().item<int64_t>() == 0);
}
