// trainkit-gpt2rec recommend and similar as a user runs them.
#include <ATen/Functions.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/rec/rec_place.h"
#include "gpt2_recommender/catalog.h"
#include "gpt2_recommender/ranking.h"
#include "gpt2_recommender/recommend.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/io/table.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

namespace {

Ended run_rec(const RecPlace& place, const std::vector<std::string>& words) {
  return run_to_end("trainkit-gpt2rec", words, place.dir.path().string());
}

/// Trains a run and moves the data away: recommendations must not need it.
void train_rec(const RecPlace& place, std::vector<std::string> more = {}) {
  const Ended ended = run_rec(place, place.flags("run", std::move(more)));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  fs::rename(place.dir / "ml-1m", place.dir / "moved");
}

/// Data and best vectors of a run of BprMf.
struct Trained {
  explicit Trained(const RecPlace& place) {
    interactions = filter_ratings(read_ratings(place.dir / "moved").value()).value();
    split = load_split(place.dir / "run" + "/split.tsv", interactions).value();
    const SafetensorsFile weights = SafetensorsFile::open(place.dir / "run" + "/best.safetensors").value();
    const NamedTensors tensors = weights.tensors().value();
    for (const auto& [name, tensor] : tensors) (name[0] == 'u' ? users : items) = tensor;
  }
  Interactions interactions;
  Split split;
  at::Tensor users, items;
};

}  // namespace

TEST_CASE("recommend lists the items and scores of the ranking code, without the data set", "[apps][rec]") {
  const RecPlace place;
  train_rec(place);
  const Trained trained(place);
  const std::string before = folder_contents(place.dir / "run"), file = place.dir / "all.csv";
  const Ended ended = run_rec(place, {"recommend", place.dir / "run", "--all_users", file, "--top_n", "7"});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK(ended.errors.find("the best in validation") != std::string::npos);
  CHECK(folder_contents(place.dir / "run") == before);

  const UserItems seen(trained.interactions, trained.split, {Part::kTrain, Part::kValidation, Part::kTest});
  const at::Tensor lists = top_items(trained.users, trained.items, seen, 7);
  const Table table = Table::open(file).value();
  REQUIRE(table.rows() == 7 * trained.interactions.num_users());
  for (int64_t row = 0; row < table.rows(); ++row) {
    const int64_t user = row / 7, item = lists[user][row % 7].item<int64_t>();
    CHECK(table.at(row, 0) == trained.interactions.users[user].id);
    CHECK(table.at(row, 1) == std::to_string(row % 7 + 1));
    CHECK(table.at(row, 2) == trained.interactions.items[item].id);
    const auto score = at::dot(trained.users[user], trained.items[item]).item<double>();
    CHECK(std::stod(std::string(table.at(row, 3))) == Approx(score).epsilon(1e-4));
    CHECK(table.at(row, 4) == trained.interactions.items[item].text);
  }
}

TEST_CASE("The lists of recommend have the test scores of the trainer", "[apps][rec]") {
  const RecPlace place;
  train_rec(place);
  const Trained trained(place);
  const UserItems known(trained.interactions, trained.split, {Part::kTrain, Part::kValidation});
  const auto lists = recommend(trained.users, trained.items, known, 10);
  at::Tensor numbers = at::full({trained.users.size(0), 10}, -1, at::kLong);
  for (size_t user = 0; user < lists.size(); ++user) {
    for (size_t i = 0; i < lists[user].size(); ++i) {
      numbers[static_cast<int64_t>(user)][static_cast<int64_t>(i)] = lists[user][i].item;
    }
  }
  const int64_t ks[] = {10};
  const auto scores = ranking_scores(numbers, UserItems(trained.interactions, trained.split, {Part::kTest}), ks);
  const auto summary = nlohmann::json::parse(read_text(place.dir / "run" + "/summary.json"));
  for (const char* name : {"recall@10", "ndcg@10", "mrr@10"}) {
    CHECK(scores.at(name) == Approx(summary.at(name).get<double>()).epsilon(1e-9));
  }
}

TEST_CASE("recommend prints titles for users, and for a new user from the mean of their items", "[apps][rec]") {
  const RecPlace place;
  train_rec(place);
  const Trained trained(place);
  const auto& items = trained.interactions.items;
  const std::string user = trained.interactions.users[3].id;
  const Ended known = run_rec(place, {"recommend", place.dir / "run", "--user", user, "--top_n", "4"});
  CHECK(known.code == 0);
  const UserItems seen(trained.interactions, trained.split, {Part::kTrain, Part::kValidation, Part::kTest});
  const at::Tensor list = top_items(trained.users, trained.items, seen, 4)[3];
  for (int64_t i = 0; i < 4; ++i) {
    CHECK(known.output.find(items[list[i].item<int64_t>()].text) != std::string::npos);
  }
  for (const int32_t item : seen.of(3)) CHECK(known.output.find("  " + items[item].text + "\n") == std::string::npos);

  const Ended fresh =
      run_rec(place, {"recommend", place.dir / "run", "--history", items[1].id, items[5].id, "--top_n", "1"});
  CHECK(fresh.code == 0);
  at::Tensor scores = at::mv(trained.items, (trained.items[1] + trained.items[5]) / 2);
  scores[1] = scores[5] = -1e9;
  CHECK(fresh.output.find(items[scores.argmax().item<int64_t>()].text) != std::string::npos);
}

TEST_CASE("recommend --user reads the index of the split, and the split itself of a run without one", "[apps][rec]") {
  const RecPlace place;
  train_rec(place, {"--epochs", "1"});
  const std::string index = place.dir / "run" + "/split.index", split = place.dir / "run" + "/split.tsv";
  const auto lists = [&] {
    const Ended ended = run_rec(place, {"recommend", place.dir / "run", "--user", "7", "3", "--top_n", "5"});
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    return ended.output;
  };
  const std::string expected = lists();
  fs::rename(index, index + ".kept");
  CHECK(lists() == expected);  // a run of an earlier version
  fs::rename(index + ".kept", index);
  fs::remove(split);
  CHECK(lists() == expected);
  const Ended fresh = run_rec(place, {"recommend", place.dir / "run", "--history", "1", "--top_n", "1"});
  CHECK(fresh.code == 0);
}

TEST_CASE("similar lists the items of the largest cosine", "[apps][rec]") {
  const at::Tensor items = at::tensor({1.0F, 0.0F, 10.0F, 1.0F, 0.5F, 0.5F, -3.0F, 0.0F}).view({4, 2});
  const auto list = similar_items(items, 0, 2);
  REQUIRE(list.size() == 2);
  CHECK(list[0].item == 1);
  CHECK(list[0].score == Approx(10 / std::sqrt(101)));
  CHECK(list[1].item == 2);
  const RecPlace place;
  train_rec(place);
  const Ended ended = run_rec(place, {"similar", place.dir / "run", "--item", Trained(place).interactions.items[0].id});
  CHECK(ended.code == 0);
  CHECK(ended.output.find("\n  20  ") != std::string::npos);
  CHECK(ended.output.find("\n  21  ") == std::string::npos);
}

TEST_CASE("recommend works with GPT-2 and its texts, without the data set", "[apps][rec]") {
  const RecPlace place;
  train_rec(place, {"--model", "gpt2", "--n_layer", "1", "--n_head", "1", "--n_embd", "8", "--max_tokens", "8",
                    "--epochs", "1"});
  const Ended ended = run_rec(place, {"recommend", place.dir / "run", "--all_users", place.dir / "all.csv"});
  INFO(ended.errors);
  CHECK(ended.code == 0);
  CHECK(Table::open(place.dir / "all.csv")->rows() == 60 * 20);
}

TEST_CASE("recommend and similar refuse bad input with one line and write nothing", "[apps][rec]") {
  const RecPlace place;
  train_rec(place, {"--epochs", "1"});
  const std::string good = place.dir / "run", out = place.dir / "all.csv";
  fs::copy(good, place.dir / "old", fs::copy_options::recursive);
  fs::remove(place.dir / "old" + "/catalog.json");
  fs::copy(good, place.dir / "damaged", fs::copy_options::recursive);
  fs::resize_file(place.dir / "damaged" + "/catalog.json", 100);
  struct Case {
    std::vector<std::string> words;
    int code;
    std::string text;
  };
  const std::vector<Case> cases = {
      {{"recommend", good}, 2, "--user, --all_users or --history: not given"},
      {{"recommend", good, "--user", "1", "--all_users", out}, 2, "given together"},
      {{"recommend", good, "extra", "--user", "1"}, 2, "error[cli.word] extra: unexpected argument"},
      {{"recommend", good, "--user", "nobody"}, 2, "--user: an id that the run was not trained on (got 'nobody'"},
      {{"recommend", good, "--history", "nothing"}, 2, "--history: an id that the run was not trained on"},
      {{"recommend", place.dir / "absent", "--all_users", out}, 5, "no such folder"},
      {{"recommend", place.dir / "old", "--all_users", out}, 5, "has not stored its users and items"},
      {{"recommend", place.dir / "damaged", "--all_users", out}, 5, "error[weights.catalog]"},
      {{"recommend", good, "--all_users", place.dir / "absent" + "/all.csv"}, 6, "absent"},
      {{"recommend", good, "--all_users", out, "--top_n", "0"}, 2, "--top_n: out of range (got '0'"},
      {{"recommend", good, "--all_users", out, "--parallel", "2"}, 2, "--parallel: has no effect in trainkit-gpt2rec"},
      {{"similar", good, "--item", "1", "--parallel", "2"}, 2, "--parallel: has no effect in trainkit-gpt2rec"},
      {{"export", good, place.dir / "a.onnx", "--tower", "x"}, 2, "--tower"},
      {{"similar", good}, 2, "--item: not given"},
      {{"similar", good, "--item", "nothing"}, 2, "--item: an id that the run was not trained on"}};
  for (const Case& bad : cases) {
    const Ended ended = run_rec(place, bad.words);
    INFO(ended.errors);
    CHECK(ended.code == bad.code);
    CHECK(ended.errors.find(bad.text) != std::string::npos);
    CHECK(ended.output.empty());
    CHECK_FALSE(fs::exists(out));
    CHECK_FALSE(fs::exists(place.dir / "a.onnx"));
  }
}
