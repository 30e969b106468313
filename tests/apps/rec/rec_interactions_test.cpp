// From ratings to interactions, and their split.
#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>

#include "gpt2_recommender/catalog.h"
#include "gpt2_recommender/interactions.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::rec;
using namespace trainkit::test;

namespace {

/// Ratings of (user, item, value, time).
Ratings make(const std::vector<std::array<int64_t, 4>>& rows) {
  Ratings ratings{.format = "recbole", .path = "x.inter"};
  for (const auto& [user, item, value, time] : rows) {
    ratings.users.resize(std::max<size_t>(ratings.users.size(), user + 1));
    ratings.items.resize(std::max<size_t>(ratings.items.size(), item + 1));
    ratings.rows.push_back(
        {static_cast<int32_t>(user), static_cast<int32_t>(item), static_cast<float>(value), Part::kTrain, time});
  }
  for (size_t i = 0; i < ratings.users.size(); ++i) ratings.users[i].id = std::string("u").append(std::to_string(i));
  for (size_t i = 0; i < ratings.items.size(); ++i) ratings.items[i].id = std::string("i").append(std::to_string(i));
  return ratings;
}

/// `users` users with `count` items each.
Interactions dense(int64_t users, int64_t count) {
  std::vector<std::array<int64_t, 4>> rows;
  for (int64_t u = 0; u < users; ++u) {
    for (int64_t i = 0; i < count; ++i) rows.push_back({u, (u + i) % (count + 5), 5, 1000 - (u * 7 + i * 31) % 97});
  }
  return filter_ratings(make(rows)).value();
}

/// One letter per interaction of the user: T(rain), V(alidation), S (test).
std::string parts_of(const Interactions& data, const Split& split, int32_t user) {
  std::string parts;
  for (int64_t i = 0; i < data.size(); ++i) {
    if (data.user[i] == user) parts += "TVS"[static_cast<int>(split.parts[i])];
  }
  return parts;
}

}  // namespace

TEST_CASE("The threshold drops lower ratings, and users and items without ratings left", "[apps][rec]") {
  const auto kept =
      filter_ratings(make({{0, 0, 3, 1}, {0, 1, 4, 1}, {1, 1, 2, 1}, {2, 2, 4, 1}, {2, 1, 5, 1}}), {.min_rating = 4})
          .value();
  CHECK(kept.size() == 3);
  REQUIRE(kept.num_users() == 2);
  CHECK(kept.users[1].id == "u2");
  CHECK(kept.items[kept.item[0]].id == "i1");
}

TEST_CASE("The k-core is the subset in which every user and item has at least k interactions", "[apps][rec]") {
  // u2 has two interactions, one of which is i3's only one: without i3, u2 has one left and is dropped; then i2 has
  // one.
  const Ratings ratings =
      make({{0, 0, 5, 1}, {0, 1, 5, 1}, {1, 0, 5, 1}, {1, 1, 5, 1}, {2, 2, 5, 1}, {2, 3, 5, 1}, {1, 2, 5, 1}});
  const auto kept = filter_ratings(ratings, {.k_core = 2}).value();
  CHECK(kept.size() == 4);
  CHECK((kept.num_users() == 2 && kept.num_items() == 2));
  CHECK(filter_ratings(ratings, {.k_core = 1})->size() == 7);
  const auto none = filter_ratings(ratings, {.k_core = 3});
  REQUIRE_FALSE(none.ok());
  CHECK(exit_code(none.status()) == ExitCode::kData);
  CHECK_THAT(error_line(none.status()), Catch::Contains("0 of 7 ratings are left"));
  Ratings without = ratings;
  without.has_values = false;
  CHECK(exit_code(filter_ratings(without, {.min_rating = 3}).status()) == ExitCode::kUsage);
}

TEST_CASE("80/10/10 rounds as RecBole does and depends on the seed only", "[apps][rec]") {
  // From RecBole's _calcu_split_ids with ratios (0.8, 0.1, 0.1).
  const std::vector<std::array<int64_t, 3>> expected = {{3, 1, 1}, {8, 1, 1}, {10, 1, 1}, {16, 2, 2}, {24, 2, 2}};
  const std::vector<int64_t> sizes = {5, 10, 12, 20, 28};
  for (size_t k = 0; k < sizes.size(); ++k) {
    const Interactions data = dense(3, sizes[k]);
    const Split split = make_split(data, {.mode = "ratio", .seed = 3}).value();
    const auto parts = parts_of(data, split, 1);
    for (int part = 0; part < 3; ++part) {
      INFO(sizes[k] << " part " << part);
      CHECK(std::count(parts.begin(), parts.end(), "TVS"[part]) == expected[k][part]);
    }
  }
  // The last training row of a user stays in training.
  std::vector<std::array<int64_t, 4>> rows = {{0, 0, 5, 1}, {0, 1, 5, 1}};
  for (int64_t item = 0; item < 5; ++item) rows.push_back({1, item, 5, 1});
  const Interactions few = filter_ratings(make(rows)).value();
  const auto of_two = parts_of(few, make_split(few, {.mode = "ratio", .seed = 3}).value(), 0);
  CHECK((of_two == "TS" || of_two == "ST"));
  const Interactions data = dense(20, 20);
  const Split split = make_split(data, {.mode = "ratio", .seed = 3}).value();
  CHECK((split.parts == make_split(data, {.mode = "ratio", .seed = 3})->parts));
  CHECK((split.parts != make_split(data, {.mode = "ratio", .seed = 4})->parts));
  CHECK(parts_of(data, split, 0) != parts_of(data, split, 1));
}

TEST_CASE("Leave-one-out takes the last two interactions, and keeps the file order for equal times", "[apps][rec]") {
  const auto data = filter_ratings(make({{0, 0, 5, 30},
                                         {0, 1, 5, 10},
                                         {0, 2, 5, 30},
                                         {0, 3, 5, 20},
                                         {1, 0, 5, 1},
                                         {1, 1, 5, 1},
                                         {1, 2, 5, 1},
                                         {2, 0, 5, 1},
                                         {2, 3, 5, 2}}))
                        .value();
  const Split split = make_split(data, {.mode = "leave_one_out"}).value();
  CHECK(parts_of(data, split, 0) == "VTST");
  CHECK(parts_of(data, split, 1) == "TVS");
  CHECK(parts_of(data, split, 2) == "TT");
  const auto pairs = filter_ratings(make({{0, 0, 5, 1}, {0, 1, 5, 1}, {1, 0, 5, 1}})).value();
  const auto impossible = make_split(pairs, {.mode = "leave_one_out"});
  REQUIRE_FALSE(impossible.ok());
  CHECK_THAT(error_line(impossible.status()), Catch::Contains("data.split") && Catch::Contains("for validation"));
  Interactions timeless = data;
  timeless.has_times = false;
  CHECK_THAT(error_line(make_split(timeless, {.mode = "leave_one_out"}).status()), Catch::Contains("no times"));
}

TEST_CASE("A split file restores the same split with its lines in any order, and refuses other data", "[apps][rec]") {
  const TempDir dir;
  const Interactions data = dense(5, 12);
  const Split split = make_split(data, {.seed = 1}).value();
  const std::string path = dir / "split.tsv";
  REQUIRE(save_split(path, data, split).ok());
  const Split loaded = make_split(data, {.mode = path}).value();
  CHECK((loaded.parts == split.parts));
  CHECK(loaded.protocol == split.protocol);

  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  const auto write = [&](const std::vector<std::string>& some) {
    std::ofstream out(dir / "other.tsv");
    for (const auto& line : some) out << line << "\n";
  };
  const auto error = [&](const Interactions& of) {
    const auto result = load_split(dir / "other.tsv", of);
    REQUIRE_FALSE(result.ok());
    CHECK(exit_code(result.status()) == ExitCode::kData);
    return error_line(result.status());
  };
  auto changed = lines;
  std::reverse(changed.begin() + 2, changed.end());
  write(changed);
  CHECK((load_split(dir / "other.tsv", data)->parts == split.parts));
  changed = {lines.begin() + 1, lines.end()};  // the protocol line is optional, the header is not
  write(changed);
  CHECK(load_split(dir / "other.tsv", data)->protocol == "split file");
  changed.erase(changed.begin());
  write(changed);
  CHECK_THAT(error(data), Catch::Contains("other.tsv:1") && Catch::Contains("header"));
  changed = lines;
  changed.pop_back();
  write(changed);
  CHECK_THAT(error(data), Catch::Contains("1 interactions are missing"));
  changed = lines;
  changed.push_back(lines[2]);
  write(changed);
  CHECK_THAT(error(data), Catch::Contains("duplicate of line 3"));
  changed = lines;
  changed[2] = "u0\ti0\tlater";
  write(changed);
  CHECK_THAT(error(data), Catch::Contains("other.tsv:3") && Catch::Contains("part: unknown"));
  changed[2] = "u0\tnowhere\ttrain";
  write(changed);
  CHECK_THAT(error(data), Catch::Contains("other.tsv:3") && Catch::Contains("no such pair"));
  write(lines);
  CHECK_THAT(error(dense(5, 11)), Catch::Contains("no such pair"));
}

TEST_CASE("Items of a user are those of the requested parts, in ascending order", "[apps][rec]") {
  const Interactions data = dense(4, 12);
  const Split split = make_split(data, {.seed = 2}).value();
  const UserItems train(data, split, {Part::kTrain}), known(data, split, {Part::kTrain, Part::kValidation});
  CHECK(train.size() == split.count(Part::kTrain));
  CHECK(known.size() == split.count(Part::kTrain) + split.count(Part::kValidation));
  for (int64_t i = 0; i < data.size(); ++i) {
    CHECK(train.contains(data.user[i], data.item[i]) == (split.parts[i] == Part::kTrain));
    CHECK(known.contains(data.user[i], data.item[i]) == (split.parts[i] != Part::kTest));
  }
  for (int64_t user = 0; user < 4; ++user) {
    const auto items = known.of(user);
    CHECK(std::is_sorted(items.begin(), items.end()));
  }
}

TEST_CASE("A run's catalog and split give its pairs, whatever ids begin with, and damaged ones are named",
          "[apps][rec]") {
  const TempDir dir;
  Interactions data = dense(3, 12);
  data.users[0].id = "# a";
  data.users[1].id = "user_id:token";
  data.items[2].text = "\"Caf\xc3\xa9\"";
  const std::string catalog = dir / kCatalogFile, split = dir / kSplitFile;
  REQUIRE(save_catalog(catalog, data).ok());
  REQUIRE(save_split(split, data, make_split(data, {}).value()).ok());
  const Interactions loaded = load_entities(catalog).value();
  CHECK(loaded.users[0].id == "# a");
  CHECK(loaded.items[2].text == data.items[2].text);
  const std::vector<int64_t> users = {2, 0, 2};
  const UserItems seen = seen_in_split(split, loaded, users).value();
  for (size_t row = 0; row < users.size(); ++row) {
    std::vector<int32_t> expected;
    for (size_t i = 0; i < data.user.size(); ++i) {
      if (data.user[i] == users[row]) expected.push_back(data.item[i]);
    }
    CHECK(std::ranges::equal(seen.of(static_cast<int64_t>(row)), expected));
  }

  const auto error = [&] {
    const auto entities = load_entities(catalog);
    const absl::Status damaged = entities.ok() ? seen_in_split(split, *entities, users).status() : entities.status();
    CHECK(exit_code(damaged) == ExitCode::kWeights);
    CHECK(id_of(damaged) == "weights.catalog");
    return error_line(damaged);
  };
  std::ofstream(split, std::ios::app) << "nobody\ti0\ttrain\n";
  CHECK_THAT(error(), Catch::Contains(split + ":39: not an interaction of a known user and item"));
  std::filesystem::remove(split);
  CHECK_THAT(error(), Catch::Contains(split));
  std::ofstream(catalog) << R"({"users": [["1", ""], ["2"]], "items": [["3", ""]]})";
  CHECK_THAT(error(), Catch::Contains("users[1]: has another type (got 'array', expected a list of two)"));
  std::ofstream(catalog) << R"({"users": [["1", ""]], "items": []})";
  CHECK_THAT(error(), Catch::Contains("items: has too few entries"));
}

namespace {

/// Bytes that this process has read with system calls.
int64_t bytes_read() {
  std::ifstream counts("/proc/self/io");
  std::string name;
  int64_t bytes = 0;
  counts >> name >> bytes;
  return bytes;
}

}  // namespace

TEST_CASE("The index of a split gives the items of a user and reads no other bytes, and a damaged one is named",
          "[apps][rec]") {
  const TempDir dir;
  Interactions data;
  data.users.resize(3000);
  data.items.resize(500);
  for (int32_t user = 0; user < 3000; ++user) {
    for (int32_t i = 0; i < 1 + user % 40; ++i) {
      data.user.push_back(user);
      data.item.push_back((user + 7 * i) % 500);
    }
  }
  const UserItems all(data, {"", std::vector<Part>(data.user.size(), Part::kTest)}, {Part::kTest});
  const std::string path = dir / kSeenFile;
  REQUIRE(save_seen(path, all).ok());
  const std::vector<int64_t> users = {2999, 17};
  const int64_t before = bytes_read();
  const int64_t own = bytes_read() - before;  // of reading the counter
  const int64_t start = bytes_read();
  const UserItems seen = load_seen(path, data, users).value();
  const int64_t needed = 2 * 16 + 4 * static_cast<int64_t>(all.of(2999).size() + all.of(17).size());
  CHECK(bytes_read() - start <= needed + own + 16);
  CHECK(std::filesystem::file_size(path) > 200'000);
  CHECK(std::ranges::equal(seen.of(0), all.of(2999)));
  CHECK(std::ranges::equal(seen.of(1), all.of(17)));

  const auto error = [&](const Interactions& catalog) {
    const auto damaged = load_seen(path, catalog, users);
    CHECK(exit_code(damaged.status()) == ExitCode::kWeights);
    CHECK(id_of(damaged.status()) == "weights.catalog");
    return error_line(damaged.status());
  };
  Interactions fewer = data;
  fewer.items.resize(100);
  CHECK_THAT(error(fewer), Catch::Contains(path + ": has an unknown item "));
  std::filesystem::resize_file(path, 20'000);
  CHECK_THAT(error(data), Catch::Contains(path));
  std::ofstream(path) << std::string(30'000, 'x');
  CHECK_THAT(error(data), Catch::Contains("has impossible offsets"));
  std::filesystem::remove(path);
  CHECK_THAT(error(data), Catch::Contains(path));
}
