// trainkit-gpt2rec export as a user runs it.
#include <ATen/Functions.h>

#include <catch2/catch.hpp>

#include "apps/rec/rec_place.h"
#include "onnx_runtime.h"
#include "trainkit/io/table.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("The exported towers give recommend's scores", "[apps][rec][onnx]") {
  if (!has_onnx_runtime()) TRAINKIT_SKIP("no Python with onnx and onnxruntime");
  const RecPlace place;
  const auto run_rec = [&](const std::vector<std::string>& words) {
    const Ended ended = run_to_end("trainkit-gpt2rec", words, place.dir.path().string());
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
  };
  const std::vector<std::string> more =
      GENERATE(std::vector<std::string>{}, std::vector<std::string>{"--model", "gpt2", "--n_layer", "1", "--n_head",
                                                                    "2", "--n_embd", "16", "--epochs", "1"});
  run_rec(place.flags("run", more));
  const std::string run = place.dir / "run";
  run_rec({"recommend", run, "--all_users", place.dir / "all.csv", "--top_n", "3"});
  run_rec({"export", run, place.dir / "user.onnx"});
  run_rec({"export", run, place.dir / "item.onnx", "--tower", "item"});

  const OnnxRun user = run_onnx(place.dir / "user.onnx", {{"user", at::arange(60)}});
  const auto user_ids = nlohmann::json::parse(user.facts["metadata"]["user_ids"].get<std::string>());
  const auto item_ids = nlohmann::json::parse(user.facts["metadata"]["item_ids"].get<std::string>());
  const auto items = static_cast<int64_t>(item_ids.size());
  const OnnxRun item = run_onnx(place.dir / "item.onnx", {{"item", at::arange(items)}});
  CHECK(largest_difference(at::matmul(user["vector"], item["vector"].t()), user["scores"]) <= 1e-5);
  const Table table = Table::open(place.dir / "all.csv").value();
  REQUIRE(table.rows() == 180);
  for (int64_t row = 0; row < table.rows(); ++row) {
    const auto number = [&](const nlohmann::json& ids, int64_t column) {
      return std::find(ids.begin(), ids.end(), std::string(table.at(row, column))) - ids.begin();
    };
    const double score = user["scores"][number(user_ids, 0)][number(item_ids, 2)].item<double>();
    CHECK(score == Approx(std::stod(std::string(table.at(row, 3)))).margin(1e-4));
  }
}
