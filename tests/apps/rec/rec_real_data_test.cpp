// MovieLens 100k itself (TRAINKIT_TEST_DATA): in its own format, as RecBole ships it, and in the format of MovieLens
// 1M.
#include <catch2/catch.hpp>
#include <fstream>

#include "gpt2_recommender/interactions.h"
#include "gpt2_recommender/ratings.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::rec;
using namespace trainkit::test;

TEST_CASE("MovieLens 100k gives the same complete data in its three formats", "[apps][rec]") {
  if (data_dir().empty()) TRAINKIT_SKIP("TRAINKIT_TEST_DATA is not set");
  const std::string folder = data_dir() + "/movielens/";
  const Ratings own = read_ratings(folder + "ml-100k").value();
  CHECK(own.format == "ml-100k");
  CHECK((own.users.size() == 943 && own.items.size() == 1682 && own.rows.size() == 100'000));
  CHECK(own.notes.empty());
  const Ratings recbole = read_ratings(folder + "ml-100k", {.format = "recbole"}).value();
  REQUIRE(recbole.rows.size() == own.rows.size());
  int64_t differences = 0;
  for (size_t i = 0; i < own.rows.size(); ++i) {
    const Rating &a = own.rows[i], &b = recbole.rows[i];
    differences += a.user != b.user || a.item != b.item || a.value != b.value || a.time != b.time;
  }
  CHECK(differences == 0);
  const Ratings as_1m = read_ratings(folder + "ml-100k-as-ml-1m").value();
  CHECK((as_1m.users.size() == 943 && as_1m.items.size() == 1682 && as_1m.rows.size() == 100'000));
  // All users have 20 or more ratings, so a 10-core drops none.
  const Interactions core = filter_ratings(own, {.k_core = 10}).value();
  CHECK(core.num_users() == 943);
  CHECK(core.num_items() == 1152);
}

TEST_CASE("The truncated sample of MovieLens 1M is refused at its last line, and its tables are read", "[apps][rec]") {
  if (data_dir().empty()) TRAINKIT_SKIP("TRAINKIT_TEST_DATA is not set");
  const TempDir dir;
  const std::string side = data_dir() + "/movielens/ml-1m-side/";
  for (const char* name : {"movies.dat", "users.dat"}) std::filesystem::copy_file(side + name, dir / name);
  std::filesystem::copy_file(side + "ratings_sample.dat", dir / "ratings.dat");
  const auto cut = read_ratings(dir.path().string());
  REQUIRE_FALSE(cut.ok());
  CHECK_THAT(error_line(cut.status()), Catch::Contains("ratings.dat:19: the last line has no line end"));
  std::ofstream(dir / "ratings.dat", std::ios::app) << "\n";
  const Ratings whole = read_ratings(dir.path().string()).value();
  CHECK(whole.rows.size() == 19);
  REQUIRE(whole.notes.size() == 2);  // most of the 6,040 users and 3,883 movies have no rating in a sample
}
