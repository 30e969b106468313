// Compares the scores of a confusion matrix with scikit-learn's for the same predictions.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <map>

#include "reference_util.h"
#include "trainkit/train/evaluate.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("Scores equal scikit-learn's", "[train][confusion_matrix][reference]") {
  if (!python_has("sklearn")) TRAINKIT_SKIP("no Python with scikit-learn");
  const TempDir dir;
  for (const uint64_t seed : {1, 2, 3}) {
    at::manual_seed(seed);
    // Classes of very different sizes, mostly correct; with seed 3, class 4 does not occur and class 5 is never
    // predicted.
    at::Tensor truth = (at::rand({2000}).square() * 6).to(at::kLong);
    const at::Tensor guess = at::randint(6, {2000}, at::kLong);
    at::Tensor predicted = at::where(at::rand({2000}) < 0.8, truth, guess);
    if (seed == 3) {
      truth = at::where(truth == 4, 3, truth);
      predicted = at::where(predicted == 5, 0, predicted);
    }
    {
      std::ofstream file(dir / "rows.csv");
      for (int64_t i = 0; i < truth.numel(); ++i) {
        file << truth[i].item<int64_t>() << "," << predicted[i].item<int64_t>() << "\n";
      }
    }
    ConfusionMatrix confusion(6);
    confusion.add(truth, predicted);
    const ClassificationScores ours = classification_scores(confusion.counts());

    std::map<std::string, std::vector<double>> theirs;
    for (const auto& cells : parse_csv(run_reference("confusion_scores.py", dir / "rows.csv"))) {
      for (size_t i = 1; i < cells.size(); ++i) theirs[cells[0]].push_back(std::stod(cells[i]));
    }
    INFO("seed " << seed);
    CHECK(ours.oa == Approx(theirs.at("oa")[0]).epsilon(1e-12));
    CHECK(ours.aa == Approx(theirs.at("aa")[0]).epsilon(1e-12));
    CHECK(ours.weighted_f1 == Approx(theirs.at("weighted_f1")[0]).epsilon(1e-12));
    CHECK(ours.macro_f1 == Approx(theirs.at("macro_f1")[0]).epsilon(1e-12));
    CHECK(ours.kappa == Approx(theirs.at("kappa")[0]).epsilon(1e-12));
    const at::Tensor counts = confusion.counts();
    for (size_t k = 0; k < 6; ++k) {
      INFO("class " << k);
      CHECK(static_cast<double>(ours.classes[k].rows) == theirs.at("support")[k]);
      CHECK(ours.classes[k].precision == Approx(theirs.at("precision")[k]).epsilon(1e-12));
      CHECK(ours.classes[k].recall == Approx(theirs.at("recall")[k]).epsilon(1e-12));
      CHECK(ours.classes[k].f1 == Approx(theirs.at("f1")[k]).epsilon(1e-12));
      for (size_t other = 0; other < 6; ++other) {
        CHECK(static_cast<double>(counts[static_cast<int64_t>(k)][static_cast<int64_t>(other)].item<int64_t>()) ==
              theirs.at("counts")[k * 6 + other]);
      }
    }
  }
}
