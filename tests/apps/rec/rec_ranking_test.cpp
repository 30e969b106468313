// Recommendation lists and their scores.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <set>

#include "gpt2_recommender/models.h"
#include "gpt2_recommender/ranking_test.h"
#include "peak_memory.h"
#include "test_util.h"
#include "trainkit/core/random.h"

using namespace trainkit;
using namespace trainkit::rec;
using namespace trainkit::test;

namespace {

struct Made {
  Interactions data;
  Split split;
};

/// Interactions of (user, item, part) triples.
Made make(int64_t users, int64_t items, const std::vector<std::tuple<int32_t, int32_t, Part>>& rows) {
  Made made;
  made.data.users.resize(users);
  made.data.items.resize(items);
  made.split.protocol = "made up";
  for (const auto& [user, item, part] : rows) {
    made.data.user.push_back(user);
    made.data.item.push_back(item);
    made.split.parts.push_back(part);
  }
  return made;
}

/// Scores and interactions of tests/reference/recbole_metrics.py.
Made reference_data(at::Tensor& scores) {
  constexpr int64_t kUsers = 50, kItems = 80;
  scores = at::empty({kUsers, kItems});
  std::vector<std::tuple<int32_t, int32_t, Part>> rows;
  for (int32_t user = 0; user < kUsers; ++user) {
    for (int32_t item = 0; item < kItems; ++item) {
      const uint64_t bits = trainkit::detail::mix64(static_cast<uint64_t>(user * kItems + item + 1));
      scores[user][item] = static_cast<float>(bits >> 40) / 0x1p24f;
      if ((bits & 15) < 2) rows.emplace_back(user, item, Part::kTrain);
      if ((bits & 15) == 2 && user != 7) rows.emplace_back(user, item, Part::kTest);
    }
  }
  return make(kUsers, kItems, rows);
}

std::atomic<int64_t> products;  // rows of the left matrix times columns of the right one

/// Counts the scores that products of matrices compute while it lives.
struct ProductCounter {
  ProductCounter() {
    products = 0;
    handle = at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& call) {
                                     if (std::string_view(call.name()).starts_with("aten::mm")) {
                                       const auto inputs = call.inputs();
                                       products += inputs[0].toTensor().size(0) * inputs[1].toTensor().size(1);
                                     }
                                     return std::unique_ptr<at::ObserverContext>();
                                   })
                                       .needsInputs(true)
                                       .scopes({at::RecordScope::FUNCTION}));
  }
  ~ProductCounter() { at::removeCallback(handle); }
  at::CallbackHandle handle;
};

/// Interactions of 60 users with 4,000 items, one of each user in the test.
Made sparse_data() {
  std::vector<std::tuple<int32_t, int32_t, Part>> rows;
  for (int32_t user = 0; user < 60; ++user) {
    for (int32_t i = 0; i < 20; ++i)
      rows.emplace_back(user, (user * 31 + i * 17) % 4000, i ? Part::kTrain : Part::kTest);
  }
  return make(60, 4000, rows);
}

}  // namespace

TEST_CASE("The scores equal RecBole's metrics for the same inputs to 1e-6", "[apps][rec]") {
  // Output of tests/reference/recbole_metrics.py with RecBole 1.2.1.
  const std::map<std::string, double> expected = {
      {"recall@1", 0.0257045675},     {"recall@5", 0.1007612569},     {"recall@10", 0.1442905734},
      {"recall@20", 0.2649659864},    {"precision@1", 0.1224489796},  {"precision@5", 0.1020408163},
      {"precision@10", 0.0755102041}, {"precision@20", 0.0714285714}, {"ndcg@1", 0.1224489796},
      {"ndcg@5", 0.1159504253},       {"ndcg@10", 0.1275247555},      {"ndcg@20", 0.1791302280},
      {"mrr@1", 0.1224489796},        {"mrr@5", 0.2156462585},        {"mrr@10", 0.2302397149},
      {"mrr@20", 0.2398610239},       {"hit@1", 0.1224489796},        {"hit@5", 0.4081632653},
      {"hit@10", 0.5306122449},       {"hit@20", 0.6734693878},       {"coverage@1", 0.4000000000},
      {"coverage@5", 0.9625000000},   {"coverage@10", 1.0000000000},  {"coverage@20", 1.0000000000},
  };
  at::Tensor scores;
  const Made made = reference_data(scores);
  const auto ranking = Ranking::create(made.data, made.split, {.ks = {1, 5, 10, 20}}).value();
  const auto ours = ranking.score(scores, at::eye(80));
  CHECK(ours.size() == expected.size());
  for (const auto& [name, value] : expected) {
    INFO(name);
    CHECK(std::abs(ours.at(name) - value) <= 1e-6);
  }
}

TEST_CASE("The lists equal a sort of all scores without excluded items", "[apps][rec]") {
  at::manual_seed(1);
  const int64_t users = 70, items = 333, dim = 9;
  const at::Tensor u = at::randn({users, dim}), v = at::randn({items, dim});
  std::vector<std::tuple<int32_t, int32_t, Part>> rows;
  for (int32_t user = 0; user < users; ++user) {
    std::set<int32_t> some;
    RandomStream random(hash_key(4, user));
    for (int i = 0; i < user; ++i) some.insert(static_cast<int32_t>(random.below(items)));
    for (const int32_t item : some) rows.emplace_back(user, item, Part::kTrain);
  }
  const Made made = make(users, items, rows);
  const UserItems left_out(made.data, made.split, {Part::kTrain});
  at::Tensor scores = u.matmul(v.t());
  for (const auto& [user, item, part] : rows) scores[user][item] = -INFINITY;
  for (const int64_t k : {1, 10, 100}) {
    const at::Tensor lists = top_items(u, v, left_out, k);
    CHECK(lists.equal(std::get<1>(scores.topk(k, 1))));
  }
  const int threads = at::get_num_threads();
  const at::Tensor expected = top_items(u, v, left_out, 20);
  at::set_num_threads(threads == 1 ? 2 : 1);
  CHECK(top_items(u, v, left_out, 20).equal(expected));
  at::set_num_threads(threads);
}

TEST_CASE("Items with equal scores have a fixed random order of each user, also among candidates", "[apps][rec]") {
  constexpr int64_t kUsers = 400, kItems = 100;
  std::vector<std::tuple<int32_t, int32_t, Part>> rows;
  for (int32_t user = 0; user < kUsers; ++user) {
    rows.emplace_back(user, user % 5, Part::kTest);  // the first items are the popular ones
    rows.emplace_back(user, 5 + user % 7, Part::kTrain);
  }
  const Made made = make(kUsers, kItems, rows);
  const at::Tensor users = at::zeros({kUsers, 3}), items = at::randn({kItems, 3});
  for (const int64_t sampled : {0, 49}) {
    const RankingOptions options{.ks = {10}, .sampled_negatives = sampled};
    const Ranking ranking = Ranking::create(made.data, made.split, options).value();
    const double hit = ranking.score(users, items).at("hit@10"), chance = sampled ? 10.0 / 50 : 10.0 / 99;
    CHECK(std::abs(hit - chance) < 4 * std::sqrt(chance * (1 - chance) / kUsers));
    CHECK(ranking.score(users, items) == ranking.score(users, items));
  }
  const UserItems none(made.data, made.split, {Part::kValidation});
  const at::Tensor lists = top_items(users, items, none, 10);
  CHECK_FALSE(lists[0].equal(lists[1]));
  const int64_t numbers[] = {7, 3};  // rows of other users have the order of these users
  const Made two = make(2, kItems, {});
  const UserItems none_of_two(two.data, two.split, {Part::kValidation});
  const at::Tensor some = top_items(users.narrow(0, 0, 2), items, none_of_two, 10, numbers);
  CHECK(some[0].equal(lists[7]));
  CHECK(some[1].equal(lists[3]));
}

TEST_CASE("The lists of many items, searched by tiles, equal a sort of all scores", "[apps][rec]") {
  at::manual_seed(2);
  const int64_t users = 300, items = 5000;  // several blocks of users, and the last tile is narrower
  const at::Tensor u = at::randn({users, 8}), v = at::randn({items, 8});
  std::vector<std::tuple<int32_t, int32_t, Part>> rows;
  for (int32_t user = 0; user < users; ++user) {
    for (int32_t i = 0; i < 40; ++i) rows.emplace_back(user, (user * 37 + i * 131) % items, Part::kTrain);
  }
  const Made made = make(users, items, rows);
  const UserItems left_out(made.data, made.split, {Part::kTrain});
  at::Tensor scores = u.matmul(v.t());
  for (const auto& [user, item, part] : rows) scores[user][item] = -INFINITY;
  CHECK(top_items(u, v, left_out, 20).equal(std::get<1>(scores.topk(20, 1))));
  CHECK(top_items(u, v, left_out, items)[0]
            .narrow(0, 0, items - 40)
            .equal(std::get<1>(scores[0].sort(0, true)).narrow(0, 0, items - 40)));
}

TEST_CASE("The lists of popularity are those of a ranking by it, also of equal counts", "[apps][rec]") {
  for (const int64_t items : {90, 5000}) {
    constexpr int64_t kUsers = 150;
    std::vector<std::tuple<int32_t, int32_t, Part>> rows;
    for (int32_t user = 0; user < kUsers; ++user) {
      for (int32_t i = 0; i < user % 80; ++i) rows.emplace_back(user, i, Part::kTrain);
    }
    const Made made = make(kUsers, items, rows);
    const UserItems left_out(made.data, made.split, {Part::kTrain});
    at::Tensor counts = at::zeros({items});
    for (const auto& [user, item, part] : rows) counts[item] += static_cast<float>(item % 3 == 0);  // many are equal
    for (const int64_t k : {1, 20, 88}) {
      CHECK(top_popular(counts, left_out, k).equal(top_items(at::ones({kUsers, 1}), counts.unsqueeze(1), left_out, k)));
    }
  }
}

TEST_CASE("Items that cannot be ranked are -1", "[apps][rec]") {
  const Made made = make(2, 5, {{0, 1, Part::kTrain}, {0, 0, Part::kTrain}, {1, 4, Part::kTest}});
  const UserItems left_out(made.data, made.split, {Part::kTrain});
  const at::Tensor same = top_items(at::ones({2, 1}), at::ones({5, 1}), left_out, 6);
  CHECK(std::get<0>(same[0].sort()).equal(at::tensor(at::ArrayRef<int64_t>{-1, -1, -1, 2, 3, 4})));
  CHECK(std::get<0>(same[1].sort()).equal(at::tensor(at::ArrayRef<int64_t>{-1, 0, 1, 2, 3, 4})));
  CHECK(same.narrow(1, 5, 1).eq(-1).all().item<bool>());
  const at::Tensor nan = at::tensor({1.0f, NAN, 3.0f, NAN, 2.0f}).unsqueeze(1);
  CHECK(top_items(at::ones({2, 1}), nan, left_out, 3)[1].equal(at::tensor(at::ArrayRef<int64_t>{2, 4, 0})));
}

TEST_CASE("A hit counts by its position, and users without a positive are not counted", "[apps][rec]") {
  // User 0 has its only item at position 2; user 1 has no positive; user 2 has one of two at position 1.
  const Made made = make(3, 6, {{0, 2, Part::kTest}, {1, 0, Part::kTrain}, {2, 5, Part::kTest}, {2, 0, Part::kTest}});
  const UserItems positives(made.data, made.split, {Part::kTest});
  const at::Tensor lists = at::tensor(at::ArrayRef<int64_t>{1, 2, 3, 1, 2, 3, 5, 1, 2}).view({3, 3});
  const std::vector<int64_t> ks = {2, 3};
  const auto scores = ranking_scores(lists, positives, ks);
  CHECK(scores.at("recall@2") == Approx((1 + 0.5) / 2));
  CHECK(scores.at("precision@3") == Approx(1.0 / 3));
  CHECK(scores.at("hit@2") == 1);
  CHECK(scores.at("mrr@2") == Approx((0.5 + 1) / 2));
  const double second = 1 / std::log2(3.0);
  CHECK(scores.at("ndcg@2") == Approx((second + 1 / (1 + second)) / 2));
  CHECK(scores.at("coverage@2") == Approx(3.0 / 6));
}

TEST_CASE("Validation excludes training items only; the test also excludes validation items", "[apps][rec]") {
  const Made made = make(2, 4,
                         {{0, 0, Part::kTrain},
                          {0, 1, Part::kValidation},
                          {0, 2, Part::kTest},
                          {1, 0, Part::kTrain},
                          {1, 1, Part::kTrain},
                          {1, 2, Part::kTrain}});
  const at::Tensor items = at::tensor({4.0f, 3.0f, 2.0f, 1.0f}).unsqueeze(1), users = at::ones({2, 1});
  CHECK(
      Ranking::create(made.data, made.split, {.part = Part::kValidation, .ks = {1}})->score(users, items).at("hit@1") ==
      1);
  CHECK(Ranking::create(made.data, made.split, {.part = Part::kTest, .ks = {1}})->score(users, items).at("hit@1") == 1);
  // Popularity uses training data only: item 0 twice, items 1 and 2 once each.
  CHECK(Ranking::create(made.data, made.split, {.part = Part::kTest, .ks = {1}})->score_popularity().at("hit@1") == 1);
}

TEST_CASE("Sampled negatives have no interaction, are reproducible, and are easier than full ranking", "[apps][rec]") {
  at::manual_seed(2);
  std::vector<std::tuple<int32_t, int32_t, Part>> rows;
  for (int32_t user = 0; user < 80; ++user) {
    rows.emplace_back(user, user % 300, Part::kTest);
    for (int32_t i = 1; i < 40; ++i) rows.emplace_back(user, (user + 7 * i) % 300, Part::kTrain);
  }
  const Made made = make(80, 300, rows);
  const at::Tensor users = at::randn({80, 4}), items = at::randn({300, 4});
  const auto scores = [&](int64_t sampled, uint64_t seed) {
    return Ranking::create(made.data, made.split,
                           {.ks = {10}, .sampled_negatives = sampled, .sampled_per_user = true, .seed = seed})
        .value()
        .score(users, items);
  };
  CHECK(scores(100, 1) == scores(100, 1));
  CHECK(scores(100, 1) != scores(100, 2));
  CHECK(scores(100, 1).at("hit@10") > scores(0, 1).at("hit@10"));
  // All remaining items are the candidates of the full ranking.
  CHECK(scores(260, 1).at("ndcg@10") == Approx(scores(0, 1).at("ndcg@10")));
  const auto protocol = [&](const RankingOptions& options) {
    return Ranking::create(made.data, made.split, options).value().protocol();
  };
  CHECK(protocol({.sampled_negatives = 100, .sampled_per_user = true}) ==
        "made up, against 100 sampled negatives of each user");
  CHECK(protocol({.sampled_negatives = 100}) ==
        "made up, against 100 sampled negatives of each positive (RecBole's uni100)");
  CHECK(protocol({.sampled_negatives = 50}) == "made up, against 50 sampled negatives of each positive");
  CHECK(Ranking::create(made.data, made.split, {}).value().protocol() == "made up, full ranking of 300 items");
  const auto impossible = Ranking::create(made.data, made.split, {.sampled_negatives = 261, .sampled_per_user = true});
  REQUIRE_FALSE(impossible.ok());
  CHECK(exit_code(impossible.status()) == ExitCode::kData);
  CHECK_THAT(error_line(impossible.status()), Catch::Contains("too few items for 261 sampled negatives"));
}

TEST_CASE("Each positive has its own negatives, drawn with replacement, as in RecBole's uni100", "[apps][rec]") {
  // One user: 3 positives, 37 training items, 1 validation item, and 259 without interaction.
  std::vector<std::tuple<int32_t, int32_t, Part>> rows;
  for (int32_t item = 0; item < 41; ++item) {
    rows.emplace_back(0, item, item < 3 ? Part::kTest : item == 3 ? Part::kValidation : Part::kTrain);
  }
  rows.emplace_back(1, 0, Part::kTrain);
  const Made made = make(2, 300, rows);
  at::manual_seed(2);
  const at::Tensor users = at::randn({2, 4}), items = at::randn({300, 4});
  const auto scores = [&](RankingOptions options) {
    options.ks = {10, 300};
    return Ranking::create(made.data, made.split, options).value().score(users, items);
  };
  const auto candidates = [&](const RankingOptions& options) {
    return std::lround(300 * scores(options).at("coverage@300"));
  };
  CHECK(candidates({.sampled_negatives = 100, .sampled_per_user = true}) == 103);
  // 300 draws from 259 items find 259 (1 - (1 - 1/259)^300) = 178 different ones, with a deviation of 7.
  const auto met = candidates({.sampled_negatives = 100});
  CHECK(met > 3 + 178 - 30);
  CHECK(met < 3 + 178 + 30);
  CHECK(scores({.sampled_negatives = 100}).at("recall@300") == 1);
  // More than the number of items.
  CHECK(candidates({.sampled_negatives = 5000}) == 262);
  // A validation may draw items that occur only in the test.
  CHECK(candidates({.part = Part::kValidation, .sampled_negatives = 5000}) == 263);
  CHECK(candidates({.part = Part::kValidation, .sampled_negatives = 259, .sampled_per_user = true}) == 260);
}

TEST_CASE("A test multiplies once, with the model; popularity needs no product", "[apps][rec]") {
  const Made made = sparse_data();
  const RankingTest test(Ranking::create(made.data, made.split, {.ks = {10}}).value(), "bpr_mf", "ndcg@10");
  const auto devices =
      DeviceReplicator::create([] { return std::make_shared<BprMf>(60, 4000, 8); }, {.device = at::kCPU}).value();
  const TempDir dir;
  const ProductCounter counter;
  const TestedRows tested = test.test(*devices, nullptr, 0, Precision::kFp32, nullptr).value();
  ResultPage page;
  REQUIRE(test.write(dir.path().string(), tested, page).ok());
  CHECK(products == 60 * 4000);
  CHECK(tested.scores.contains("mrr"));
  CHECK(tested.scores.contains("popularity.ndcg@10"));
}

TEST_CASE("Few candidates are scored alone, and give the lists of scoring all items", "[apps][rec]") {
  const Made made = sparse_data();
  at::manual_seed(3);
  const at::Tensor users = at::randn({60, 37}), items = at::randn({4000, 37});
  const auto ranking = [&](const RankingOptions& options) {
    return Ranking::create(made.data, made.split, options).value();
  };
  const Ranking few = ranking({.ks = {10}, .sampled_negatives = 100});
  at::Tensor lists;
  {
    const ProductCounter counter;
    lists = few.lists(users, items);
    CHECK(products == 0);
    ranking({.ks = {10}, .sampled_negatives = 3000}).lists(users, items);
    CHECK(products == 60 * 4000);
  }
  const UserItems candidates =
      sampled_candidates(made.data, SplitItems(made.data, made.split), UserItems(made.data, made.split, {Part::kTest}),
                         {.sampled_negatives = 100})
          .value();
  const at::Tensor scores = users.to(at::kDouble).matmul(items.to(at::kDouble).t());
  for (int64_t user = 0; user < 60; ++user) {
    at::Tensor own = at::full({4000}, -INFINITY, at::kDouble);
    for (const int32_t item : candidates.of(user)) own[item] = scores[user][item];
    CHECK(lists[user].equal(std::get<1>(own.topk(10))));
  }
}

TEST_CASE("Candidates are those drawn from a list of the other items, without such a list", "[apps][rec]") {
  const Made made = sparse_data();
  const UserItems known(made.data, made.split, {Part::kTrain, Part::kValidation, Part::kTest});
  const UserItems positives(made.data, made.split, {Part::kTest});
  for (const bool per_user : {false, true}) {
    const RankingOptions options{.sampled_negatives = 300, .sampled_per_user = per_user, .seed = 9};
    const UserItems drawn =
        sampled_candidates(made.data, SplitItems(made.data, made.split), positives, options).value();
    for (int64_t user = 0; user < 60; ++user) {
      std::vector<int32_t> others;
      for (int32_t item = 0; item < 4000; ++item) {
        if (!known.contains(user, item)) others.push_back(item);
      }
      const OtherItems without_list(known.of(user), 4000);
      REQUIRE(without_list.size() == others.size());
      for (size_t i = 0; i < others.size(); i += 7) CHECK(without_list[i] == others[i]);
      RandomStream random(hash_key(options.seed, 0xca4du, user));
      std::set<int32_t> expected(positives.of(user).begin(), positives.of(user).end());
      for (size_t i = 0; i < 300; ++i) {
        if (per_user) std::swap(others[i], others[i + random.below(others.size() - i)]);
        expected.insert(per_user ? others[i] : others[random.below(others.size())]);
      }
      CHECK(std::ranges::equal(drawn.of(user), expected));
    }
  }
  // A list of the other items of one user would have 8 MB.
  Made large = make(2, 1, {{0, 0, Part::kTest}, {1, 0, Part::kTrain}});
  large.data.items.resize(2'000'000);
  const UserItems one(large.data, large.split, {Part::kTest});
  reset_peak_memory();
  const int64_t before = peak_memory();
  CHECK(sampled_candidates(large.data, SplitItems(large.data, large.split), one, {.sampled_negatives = 100})
            ->of(0)
            .size() > 90);
  CHECK(peak_memory() - before < 4 << 20);
}
