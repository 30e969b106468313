// Files of the recommender: a table, RecBole's and MovieLens' files; a split, its index, a catalog and negatives of a
// fixed data set.
#include "gpt2_recommender/ratings.h"

#include <cmath>
#include <filesystem>

#include "gpt2_recommender/catalog.h"
#include "gpt2_recommender/interactions.h"
#include "gpt2_recommender/ranking.h"
#include "target.h"

namespace trainkit::fuzz::ratings {
namespace {

constexpr std::string_view kRatings = "1::10::5::978300760\n1::20::3::978302109\n2::10::4::978300055\n2::30::1::9\n";
constexpr std::string_view kMovies = "10::Toy Story (1995)::Animation|Comedy\n20::Heat::Drama\n30::Alien::Horror\n";
constexpr std::string_view kUsers = "1::F::1::10::48067\n2::M::56::16::70072\n";
constexpr std::string_view kSplit =
    "# given\nuser_id:token\titem_id:token\tpart:token\n1\t10\ttrain\n1\t20\ttest\n2\t10\tvalidation\n2\t30\ttrain\n";

void require_whole(const absl::StatusOr<rec::Ratings>& read) {
  if (!read.ok()) return require_named(read.status(), {"data."});
  for (const rec::Rating& row : read->rows) {
    require(row.user >= 0 && row.user < std::ssize(read->users), "a rating has a user");
    require(row.item >= 0 && row.item < std::ssize(read->items), "a rating has an item");
    require(std::isfinite(row.value), "a rating is finite");
  }
}

/// Reads MovieLens' files with one of them replaced.
void read_movielens(std::string_view ratings, std::string_view movies, std::string_view users) {
  std::filesystem::create_directories(folder() + "/ml-1m");
  write_bytes("ml-1m/ratings.dat", ratings);
  write_bytes("ml-1m/movies.dat", movies);
  write_bytes("ml-1m/users.dat", users);
  require_whole(rec::read_ratings(folder() + "/ml-1m", {.format = "ml-1m"}));
}

const rec::Interactions& interactions() {
  static const rec::Interactions made = [] {
    read_movielens(kRatings, kMovies, kUsers);
    return rec::filter_ratings(rec::read_ratings(folder() + "/ml-1m").value()).value();
  }();
  return made;
}

void read_split(std::string_view bytes) {
  const rec::Interactions& data = interactions();
  const auto split = rec::load_split(write_bytes("split.tsv", bytes), data);
  if (!split.ok()) return require_named(split.status(), {"data."});
  const std::string copy = folder() + "/copy.tsv";
  require(rec::save_split(copy, data, *split).ok(), "a split is written");
  const auto again = rec::load_split(copy, data);
  require(again.ok() && again->parts == split->parts, "a split is read back");
}

}  // namespace

std::vector<std::string> seeds() {
  return {
      "user_id,item_id,rating,timestamp\na,x,5,100\nb,\"y, z\",3,2024-05-01T12:30:00Z\na,y,1,300\n",
      "a\tx\nb\ty\na\ty\n",
      "user_id:token\titem_id:token\trating:float\ttimestamp:float\nu1\ti1\t5\t10\nu1\ti2\t4.5\t11.0\nu2\ti1\t1\t9\n",
      std::string(kRatings),
      std::string(kMovies),
      std::string(kUsers),
      std::string(kSplit),
      "(1,10)\t20\t30\n2,10\n",
      R"({"users": [["1", "a user"], ["2", ""]], "items": [["10", "x"], ["20", ""], ["30", "z"]]})"};
}

int test_one_input(const uint8_t* data, size_t size) {
  const std::string_view bytes = as_text(data, size);
  require_whole(rec::read_ratings(write_bytes("events.csv", bytes), {.format = "table"}));
  require_whole(rec::read_ratings(write_bytes("events.jsonl", bytes), {.format = "table"}));
  require_whole(rec::read_ratings(write_bytes("events.inter", bytes), {.format = "recbole"}));
  read_movielens(bytes, kMovies, kUsers);
  read_movielens(kRatings, bytes, kUsers);
  read_movielens(kRatings, kMovies, bytes);
  read_split(bytes);
  const auto negatives = rec::read_negatives(write_bytes("test.negative", bytes), interactions());
  if (!negatives.ok()) require_named(negatives.status(), {"data."});
  const auto catalog = rec::load_entities(write_bytes("catalog.json", bytes));
  if (!catalog.ok()) require_named(catalog.status(), {"weights.catalog"});
  const int64_t users[] = {1, 0};
  for (const auto& seen : {rec::seen_in_split(write_bytes("split.tsv", bytes), interactions(), users),
                           rec::load_seen(write_bytes("split.index", bytes), interactions(), users)}) {
    if (!seen.ok()) require_named(seen.status(), {"weights.catalog"});
  }
  return 0;
}

const Registered target("ratings", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::ratings
