// --init_from of trainkit-gpt2rec: rows of users, items and characters keep their meaning.
#include <ATen/ops/arange.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/rec/rec_place.h"
#include "gpt2_recommender/catalog.h"
#include "gpt2_recommender/models.h"
#include "trainkit/train/weights.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

Interactions catalog_of(const std::vector<std::string>& users, const std::vector<std::string>& items) {
  Interactions interactions;
  for (const std::string& user : users) interactions.users.push_back({user, ""});
  for (const std::string& item : items) interactions.items.push_back({item, ""});
  return interactions;
}

const Interactions kEarlier = catalog_of({"u0", "u1", "u2"}, {"i0", "i1"});

/// Weights of a run with kEarlier: row i of both tables is (i, i).
std::string saved_run(const TempDir& dir) {
  REQUIRE(save_catalog(dir / "catalog.json", kEarlier).ok());
  const auto table = [](int64_t rows) { return torch::arange(rows, torch::kFloat).unsqueeze(1).expand({rows, 2}); };
  REQUIRE(save_safetensors(Fs::posix(), dir / "best.safetensors",
                           {{"user_embedding", table(3)}, {"item_embedding", table(2)}})
              .ok());
  return dir / "best.safetensors";
}

/// Loads the file into a new model for these users and items.
absl::Status load(BprMf& model, const std::string& file, const Interactions& own, RunFacts& facts) {
  LoadWeightsOptions options;
  const RunWeights from{.run = split_path(file).first, .file = file};
  absl::Status adapted = adapt_rows(from, own, RecOptions{}, options, facts);
  return adapted.ok() ? load_weights(model, file, options).status() : adapted;
}

}  // namespace

TEST_CASE("Rows of users and items are taken by their ids, and new ones start as in a new model", "[apps][rec]") {
  TempDir dir;
  const std::string file = saved_run(dir);
  const Interactions own = catalog_of({"u2", "new", "u0", "u1"}, {"i1", "i0"});
  BprMf model(4, 2, 2);
  const at::Tensor fresh = model.vectors().users[1].clone();
  RunFacts facts;
  REQUIRE(load(model, file, own, facts) == absl::OkStatus());
  CHECK(torch::equal(model.vectors().users.select(1, 0).index({torch::tensor({0, 2, 3})}),
                     torch::tensor({2.f, 0.f, 1.f})));
  CHECK(torch::equal(model.vectors().users[1], fresh));
  CHECK(torch::equal(model.vectors().items.select(1, 0), torch::tensor({1.f, 0.f})));
  REQUIRE(facts.size() == 1);
  CHECK_THAT(facts[0].second, Catch::Contains("3 of 4 users, 2 of 2 items, 1 of 1 characters by the names in"));
}

TEST_CASE("Weights of other users and items are refused, and those without a catalog give a warning", "[apps][rec]") {
  TempDir dir;
  const std::string file = saved_run(dir);
  BprMf model(3, 2, 2);
  RunFacts facts;
  const absl::Status other = load(model, file, catalog_of({"a", "b", "c"}, {"d", "e"}), facts);
  CHECK(exit_code(other) == ExitCode::kWeights);
  CHECK_THAT(
      error_line(other),
      Catch::Contains("error[weights.meaning]") &&
          Catch::Contains("has none of these users and items (got 'u0, u1, u2; i0, i1', expected a, b, c; d, e)"));
  REQUIRE(save_catalog(dir / "catalog.json", catalog_of({"u0"}, {"i0", "i1"})).ok());
  CHECK_THAT(
      error_line(load(model, file, kEarlier, facts)),
      Catch::Contains("user_embedding: another number of users than the weights have rows (got '1', expected 3)"));
  std::filesystem::remove(dir / "catalog.json");
  facts.clear();
  REQUIRE(load(model, file, kEarlier, facts).ok());
  REQUIRE(facts.size() == 1);
  CHECK(facts[0].first == "warning:");
  CHECK_THAT(facts[0].second, Catch::Contains("row i of its tables is taken for user i and item i"));
}

TEST_CASE("A run that starts from weights of the same data in another order has their score", "[apps][rec]") {
  const RecPlace place;
  const auto lines = [&](const std::string& name, bool reversed) {
    std::vector<std::string> all;
    for (int user = 0; user < 20; ++user) {
      for (int i = 0; i < 8; ++i)
        all.push_back(std::to_string(user) + "," + std::to_string((user % 2 + 2 * i + user / 7) % 20) + "," +
                      std::to_string(i));
    }
    if (reversed) std::reverse(all.begin(), all.end());
    std::ofstream file(place.dir / name);
    file << "user,item,timestamp\n";
    for (const std::string& line : all) file << line << "\n";
    return place.dir / name;
  };
  const auto validation = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.end(), {"--split", "leave_one_out", "--epochs", "3", "--eval_every", "1", "--batch_size", "16"});
    const Ended ended = run_to_end("trainkit-gpt2rec", place.flags(name, more), place.dir.path().string());
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    return nlohmann::json::parse(read_text(place.dir / name + "/summary.json"));
  };
  const auto first = validation("first", {"--data_dir", lines("a.csv", false), "--lr", "0.05"});
  const std::string other = lines("b.csv", true);
  for (const char* from : {"first", "first/best.safetensors"}) {
    const auto again =
        validation("again", {"--data_dir", other, "--lr", "1e-12", "--init_from", place.dir / from, "--overwrite"});
    CHECK(again.at("best").at("val_ndcg@10").get<double>() == Approx(first.at("best").at("val_ndcg@10").get<double>()));
  }
}
