#pragma once
/// Who rated what, and what is known of both: MovieLens and RecBole files.

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trainkit::rec {

/// One line of a ratings file.
struct Rating {
  int32_t user = 0;  ///< In Ratings::users.
  int32_t item = 0;  ///< In Ratings::items.
  float value = 0;
  int64_t time = 0;  ///< Seconds or milliseconds, as the file has them.
};

/// A user or an item.
struct Entity {
  /// As in the file.
  std::string id = {};
  /// What the files know of it, as a sentence in UTF-8 that a language model can read: "Toy Story (1995). Animation,
  /// Children's, Comedy". Empty where they know nothing.
  std::string text = {};
};

/// A data set as it was read: every line checked, nothing left out.
struct Ratings {
  /// "ml-1m", "ml-100k" or "recbole".
  std::string format = {};
  /// The file of the ratings.
  std::string path = {};
  /// Those who rated and those that were rated, in the order of their first line.
  std::vector<Entity> users = {};
  std::vector<Entity> items = {};
  /// In the order of the file.
  std::vector<Rating> rows = {};
  bool has_values = true;
  bool has_times = true;
  /// What a person should know: users and items that stand in their file and were never rated.
  std::vector<std::string> notes = {};
};

/// The names for read_ratings, "auto" first.
const std::vector<std::string>& ratings_formats();

/// Reads a folder:
///   ml-1m    ratings.dat, movies.dat, users.dat: "::" between fields (also MovieLens 10M's half stars)
///   ml-100k  u.data, u.item, u.user: tabs, and "|" in the latter two
///   recbole  one NAME.inter with a header ("user_id:token", "item_id:token", and if there are "rating:float",
///            "timestamp:float"); NAME.item and NAME.user where they exist. May also be the path of the .inter itself.
/// "auto" takes the first that is there, in the order ml-100k, ml-1m, recbole.
///
/// Errors, exit code 4, each with file and line: those of LineFile; data.ratings for a wrong number of fields, an id, a
/// rating or a time that is none or out of range, an id that the other files lack, a pair that stands twice (both lines
/// are named), times in seconds beside times in milliseconds, fewer than two users or items; data.items and data.users
/// likewise, with an unknown genre, gender, age or occupation. data.missing if the folder has no such files.
absl::StatusOr<Ratings> read_ratings(const std::string& path, const std::string& format = "auto");

struct DemoRatingsOptions {
  int64_t users = 300;
  int64_t items = 200;
  /// Ratings of a user, on average.
  int64_t ratings_per_user = 40;
  uint64_t seed = 0;
};

/// Writes a made-up data set in all three formats into the folders ml-1m, ml-100k and recbole of `folder`, the same in
/// each but for what a format cannot say: users who like some genres, items of a few genres each, popular and rare
/// ones. A function of the options alone.
absl::Status write_demo_ratings(const std::string& folder, const DemoRatingsOptions& options = {});

/// The same world as it would be read, without files: "made up" is its format and its path.
Ratings make_demo_ratings(const DemoRatingsOptions& options = {});

namespace detail {

/// Ratings of files that MovieLens and RecBole have; ratings.cpp chooses.
absl::StatusOr<Ratings> read_movielens_1m(const std::string& folder);
absl::StatusOr<Ratings> read_movielens_100k(const std::string& folder);
absl::StatusOr<Ratings> read_recbole(const std::string& inter_path);

/// MovieLens 1M's names: genres, occupations by their code, ages by the lower bound of their bracket.
const std::vector<std::string>& movielens_genres();
const std::vector<std::string>& movielens_occupations();
const std::vector<std::pair<int64_t, std::string>>& movielens_ages();

}  // namespace detail

}  // namespace trainkit::rec
