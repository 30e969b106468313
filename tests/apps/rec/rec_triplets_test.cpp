// Triplets: their contents, and that they depend only on seed, epoch and row.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "contract/dataset_contract.h"
#include "core/device/gpu_operations.h"
#include "gpt2_recommender/device_triplets.h"
#include "gpt2_recommender/triplet_draw.h"
#include "gpt2_recommender/triplets.h"
#include "test_util.h"
#include "trainkit/data/prefetcher.h"

using namespace trainkit;
using namespace trainkit::rec;
using namespace trainkit::test;

namespace {

/// 60 users with 4 to 33 of 40 items; items with larger i are chosen less often.
Interactions skewed() {
  Interactions data;
  data.users.resize(60);
  data.items.resize(40);
  for (int32_t user = 0; user < 60; ++user) {
    RandomStream random(hash_key(9, user));
    std::set<int32_t> items = {0, 39};
    while (static_cast<int32_t>(items.size()) < 4 + user / 2) {
      items.insert(static_cast<int32_t>(40 * random.uniform() * random.uniform()));
    }
    for (const int32_t item : items) {
      data.user.push_back(user);
      data.item.push_back(item);
      data.time.push_back(0);
    }
  }
  return data;
}

Split all_train_but(const Interactions& data, int64_t every) {
  Split split{"", std::vector<Part>(data.user.size(), Part::kTrain)};
  for (size_t i = 0; i < split.parts.size(); i += every) split.parts[i] = Part::kTest;
  return split;
}

struct Rows {
  std::vector<int64_t> users, positives, negatives;
  bool operator==(const Rows&) const = default;
};

Rows epoch_of(std::shared_ptr<const Dataset> data, PrefetcherOptions options, int64_t epoch = 0, uint64_t seed = 1,
              int64_t from = 0) {
  auto loader = Prefetcher::create(data, RandomSampler(data->size(), {.seed = seed}), options).value();
  loader->seek(epoch, from);
  Rows all;
  while (auto batch = loader->next().value()) {
    const auto add = [&](const char* field, std::vector<int64_t>& to) {
      const at::Tensor& values = (*batch)[field];
      to.insert(to.end(), values.const_data_ptr<int64_t>(), values.const_data_ptr<int64_t>() + values.numel());
    };
    add("users", all.users);
    add("pos_items", all.positives);
    add("neg_items", all.negatives);
  }
  return all;
}

}  // namespace

TEST_CASE("TripletDataset satisfies the contract of a Dataset", "[apps][rec]") {
  const Interactions data = skewed();
  const Split split = all_train_but(data, 9);
  for (const Negatives negatives : {Negatives::kUniform, Negatives::kPopularity}) {
    check_dataset_contract(TripletDataset::create(data, split, Part::kTrain, negatives).value());
  }
}

TEST_CASE("A negative is never a training item of its user, and each positive occurs once per epoch", "[apps][rec]") {
  const Interactions data = skewed();
  const Split split = all_train_but(data, 9);
  const UserItems train(data, split, {Part::kTrain});
  for (const Negatives negatives : {Negatives::kUniform, Negatives::kPopularity}) {
    const auto triplets = TripletDataset::create(data, split, Part::kTrain, negatives).value();
    for (int64_t epoch = 0; epoch < 20; ++epoch) {
      const Rows all = epoch_of(triplets, {.batch_size = 100}, epoch);
      std::set<std::pair<int64_t, int64_t>> pairs;
      int64_t bad = 0;
      for (size_t i = 0; i < all.users.size(); ++i) {
        pairs.emplace(all.users[i], all.positives[i]);
        bad += train.contains(all.users[i], static_cast<int32_t>(all.negatives[i])) || all.negatives[i] < 0 ||
               all.negatives[i] >= data.num_items();
        bad += !train.contains(all.users[i], static_cast<int32_t>(all.positives[i]));
      }
      CHECK(bad == 0);
      CHECK(static_cast<int64_t>(pairs.size()) == train.size());
    }
  }
}

TEST_CASE("Triplets are the same for any workers and any start position, and differ between epochs and seeds",
          "[apps][rec]") {
  const Interactions data = skewed();
  const auto triplets = TripletDataset::create(data, all_train_but(data, 9), Part::kTrain, Negatives::kUniform).value();
  const Rows expected = epoch_of(triplets, {.batch_size = 64}, 3);
  CHECK(epoch_of(triplets, {.batch_size = 64, .num_workers = 3, .prefetch_factor = 4}, 3) == expected);
  CHECK(epoch_of(triplets, {.batch_size = 17, .num_workers = 1}, 3) == expected);
  const Rows rest = epoch_of(triplets, {.batch_size = 64}, 3, 1, 5);
  CHECK(rest.negatives == std::vector(expected.negatives.begin() + 5 * 64, expected.negatives.end()));
  CHECK(epoch_of(triplets, {.batch_size = 64}, 4).negatives != expected.negatives);
  CHECK(epoch_of(triplets, {.batch_size = 64}, 3, 2).negatives != expected.negatives);
}

TEST_CASE("Validation rows have negatives that are in neither the training nor the validation set", "[apps][rec]") {
  const Interactions data = skewed();
  Split split = all_train_but(data, 9);
  for (size_t i = 4; i < split.parts.size(); i += 9) split.parts[i] = Part::kValidation;
  const UserItems known(data, split, {Part::kTrain, Part::kValidation}), test(data, split, {Part::kTest});
  const auto rows = TripletDataset::create(data, split, Part::kValidation, Negatives::kUniform).value();
  CHECK(rows->size() == split.count(Part::kValidation));
  int64_t of_test = 0;
  for (int64_t epoch = 0; epoch < 50; ++epoch) {
    const Rows all = epoch_of(rows, {.batch_size = 100}, epoch);
    for (size_t i = 0; i < all.users.size(); ++i) {
      REQUIRE_FALSE(known.contains(all.users[i], static_cast<int32_t>(all.negatives[i])));
      of_test += test.contains(all.users[i], static_cast<int32_t>(all.negatives[i]));
    }
  }
  CHECK(of_test > 0);  // the test items are unknown at validation
}

TEST_CASE("Uniform negatives are equally frequent; popularity negatives follow the item counts", "[apps][rec]") {
  // One user with two of 12 items; the other users make some of the rest popular.
  Interactions data;
  data.users.resize(21);
  data.items.resize(12);
  const auto add = [&](int32_t user, int32_t item) {
    data.user.push_back(user);
    data.item.push_back(item);
  };
  add(0, 0);
  add(0, 1);
  for (int32_t user = 1; user <= 20; ++user) {
    for (int32_t item = 2; item < 12; ++item) {
      if (user <= 2 * (item - 1)) add(user, item);  // item 2 twice, ..., item 11 twenty times
    }
  }
  const Split split{"", std::vector<Part>(data.user.size(), Part::kTrain)};
  for (const Negatives kind : {Negatives::kUniform, Negatives::kPopularity}) {
    const auto triplets = TripletDataset::create(data, split, Part::kTrain, kind).value();
    std::vector<double> counts(12);
    double draws = 0;
    for (int64_t epoch = 0; epoch < 20'000; ++epoch) {
      int64_t out[3];
      BatchView::Field fields[3] = {{reinterpret_cast<std::byte*>(out), 8},
                                    {reinterpret_cast<std::byte*>(out + 1), 8},
                                    {reinterpret_cast<std::byte*>(out + 2), 8}};
      triplets->get({.index = epoch % 2, .epoch = epoch, .seed = 5}, BatchView(fields, 1), 0);
      REQUIRE(out[0] == 0);
      ++counts[out[2]];
      ++draws;
    }
    double chi2 = 0;
    for (int item = 2; item < 12; ++item) {
      const double share = kind == Negatives::kUniform ? 0.1 : 2.0 * (item - 1) / 110;
      chi2 += std::pow(counts[item] - draws * share, 2) / (draws * share);
    }
    CHECK((counts[0] == 0 && counts[1] == 0));
    CHECK(chi2 < 27.9);  // 9 degrees of freedom, p = 0.001
  }
}

TEST_CASE("A user without interaction for one item gets that item; a user of all items is an error", "[apps][rec]") {
  Interactions data;
  data.users = {{"a"}, {"b"}};
  data.items.resize(5000);
  for (int32_t item = 0; item < 5000; ++item) {
    if (item == 4321) continue;
    data.user.push_back(0);
    data.item.push_back(item);
  }
  data.user.push_back(1);
  data.item.push_back(4321);
  Split split{"", std::vector<Part>(data.user.size(), Part::kTrain)};
  for (const Negatives kind : {Negatives::kUniform, Negatives::kPopularity}) {
    const Rows all = epoch_of(TripletDataset::create(data, split, Part::kTrain, kind).value(), {.batch_size = 512});
    for (size_t i = 0; i < all.users.size(); ++i) {
      if (all.users[i] == 0) REQUIRE(all.negatives[i] == 4321);
    }
  }
  data.user.push_back(0);
  data.item.push_back(4321);
  split.parts.push_back(Part::kTrain);
  const auto all = TripletDataset::create(data, split, Part::kTrain, Negatives::kUniform);
  REQUIRE_FALSE(all.ok());
  CHECK(exit_code(all.status()) == ExitCode::kData);
  CHECK_THAT(error_line(all.status()), Catch::Contains("user a") && Catch::Contains("every item"));
}

TEST_CASE("History gives the same answers with a bit set, a search, and a table", "[apps][rec]") {
  const Interactions data = skewed();
  const UserItems items(data, all_train_but(data, 9), {Part::kTrain});
  const History history(items);
  const at::Tensor table = history.dense();
  CHECK_FALSE(history.bits().empty());
  for (int64_t user = 0; user < 60; ++user) {
    for (int32_t item = 0; item < 40; ++item) {
      REQUIRE(history.contains(user, item) == items.contains(user, item));
      REQUIRE(table[user][item].item<bool>() == items.contains(user, item));
    }
  }
  Interactions wide;  // too many pairs for a bit set
  wide.users.resize(70'000);
  wide.items.resize(40'000);
  wide.user = {0, 69'999};
  wide.item = {3, 39'999};
  const History searched(UserItems(wide, {"", {Part::kTrain, Part::kTrain}}, {Part::kTrain}));
  CHECK(searched.bits().empty());
  CHECK((searched.contains(69'999, 39'999) && !searched.contains(69'999, 3) && searched.contains(0, 3)));
  const auto triplets =
      TripletDataset::create(wide, {"", {Part::kTrain, Part::kTrain}}, Part::kTrain, Negatives::kUniform).value();
  CHECK(epoch_of(triplets, {.batch_size = 2}).users.size() == 2);
}

TEST_CASE("In-batch negatives are positives of other rows that the user has not chosen", "[apps][rec]") {
  const Interactions data = skewed();
  const Split split = all_train_but(data, 9);
  const auto triplets = TripletDataset::create(data, split, Part::kTrain, Negatives::kUniform).value();
  const at::Tensor known = triplets->history().dense();
  const Rows all = epoch_of(triplets, {.batch_size = 64});
  const auto tensor = [](const std::vector<int64_t>& values) {
    return at::tensor(at::ArrayRef<int64_t>(values.data(), 64), at::kLong);
  };
  const at::Tensor users = tensor(all.users), positives = tensor(all.positives), drawn = tensor(all.negatives);
  const at::Tensor negatives = in_batch_negatives(users, positives, drawn, known);
  CHECK_FALSE(known.index({users, negatives}).any().item<bool>());
  const at::Tensor from_batch = negatives.unsqueeze(1).eq(positives.unsqueeze(0)).any(1);
  CHECK(at::logical_or(from_batch, negatives.eq(drawn)).all().item<bool>());
  CHECK(from_batch.to(at::kFloat).mean().item<double>() > 0.9);
  CHECK(negatives.equal(in_batch_negatives(users, positives, drawn, known)));
  CHECK(in_batch_negatives(users.slice(0, 0, 1), positives.slice(0, 0, 1), drawn.slice(0, 0, 1), known)
            .equal(drawn.slice(0, 0, 1)));
}

TEST_CASE("Triplets drawn on the device equal the loader's bit for bit", "[apps][rec]") {
  const Interactions data = skewed();
  Split split = all_train_but(data, 9);
  for (size_t i = 4; i < split.parts.size(); i += 9) split.parts[i] = Part::kValidation;
  for (const Negatives kind : {Negatives::kUniform, Negatives::kPopularity}) {
    for (const Part part : {Part::kTrain, Part::kValidation}) {
      const auto triplets = TripletDataset::create(data, split, part, kind).value();
      const DeviceTriplets on_device(triplets, {at::Device(at::kCPU)});
      for (const auto& [seed, epoch] : {std::pair<uint64_t, int64_t>{1, 0}, {1, 1}, {77, 3}}) {
        const Rows expected = epoch_of(triplets, {.batch_size = 64}, epoch, seed);
        const auto rows = on_device.rows();
        auto loader =
            Prefetcher::create(rows, RandomSampler(rows->size(), {.seed = seed}), {.batch_size = 37, .num_workers = 2})
                .value();
        loader->seek(epoch, 0);
        Rows drawn;
        while (auto batch = loader->next().value()) {
          const auto made = on_device.draw(*batch);
          const auto add = [](const at::Tensor& values, std::vector<int64_t>& to) {
            to.insert(to.end(), values.const_data_ptr<int64_t>(), values.const_data_ptr<int64_t>() + values.numel());
          };
          add(made.users, drawn.users);
          add(made.positives, drawn.positives);
          add(made.negatives, drawn.negatives);
        }
        CHECK(drawn == expected);
      }
    }
  }
}

TEST_CASE("A draw on the device uses the loader's fallback after 64 failed tries", "[apps][rec]") {
  Interactions data;
  data.users.resize(2);
  data.items.resize(5000);
  for (int32_t item = 0; item < 5000; ++item) {
    data.user.push_back(item == 4321 ? 1 : 0);
    data.item.push_back(item);
  }
  const Split split{"", std::vector<Part>(data.user.size(), Part::kTrain)};
  for (const Negatives kind : {Negatives::kUniform, Negatives::kPopularity}) {
    const auto triplets = TripletDataset::create(data, split, Part::kTrain, kind).value();
    const DeviceTriplets on_device(triplets, {at::Device(at::kCPU)});
    auto loader = Prefetcher::create(on_device.rows(), RandomSampler(5000, {.seed = 1}), {.batch_size = 5000}).value();
    const auto made = on_device.draw(loader->next().value().value());
    const Rows expected = epoch_of(triplets, {.batch_size = 5000});
    CHECK(std::equal(expected.negatives.begin(), expected.negatives.end(), made.negatives.const_data_ptr<int64_t>()));
  }
}

TEST_CASE("The kernel uses the library's generator, and rows out of range are errors", "[apps][rec]") {
  for (const uint64_t key : {uint64_t{0}, uint64_t{1}, uint64_t{0xfedcba9876543210}}) {
    for (uint64_t attempt = 1; attempt < 70; ++attempt) {
      REQUIRE(trainkit::rec::detail::attempt_key(key, attempt) == hash_key(key, attempt));
    }
  }
  const Interactions data = skewed();
  const auto triplets = TripletDataset::create(data, all_train_but(data, 9), Part::kTrain, Negatives::kUniform).value();
  const DeviceTriplets on_device(triplets, {at::Device(at::kCPU)});
  CHECK(on_device.table_bytes() == 8 * triplets->size() + 60 * 64 / 8);
  const auto fields = std::make_shared<const std::vector<FieldSpec>>(on_device.rows()->fields());
  const at::Tensor key = at::zeros({1}, at::kLong);
  for (const int64_t row : {int64_t{-1}, triplets->size()}) {
    CHECK_THROWS_AS(on_device.draw(Batch(fields, {at::full({1}, row, at::kLong), key})), c10::IndexError);
  }
}
