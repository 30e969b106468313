#pragma once
/// Reads ratings and the descriptions of users and items from MovieLens and RecBole files, and tables of interactions.

#include <absl/functional/function_ref.h>
#include <absl/status/statusor.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trainkit::rec {

/// Part of an interaction in training and evaluation.
enum class Part : uint8_t { kTrain, kValidation, kTest };

/// A time as in its file, exact to 18 decimal places, so that times keep their order.
struct EventTime {
  EventTime() = default;
  EventTime(int64_t units, int64_t decimals = 0) : whole(units), fraction(decimals) {}
  auto operator<=>(const EventTime&) const = default;  // NOLINT(modernize-use-nullptr)

  /// Units of the file (seconds, milliseconds, ...) since 1970, rounded down; seconds for a date.
  int64_t whole = 0;
  /// Part of a unit in 10^-18, 0 or more.
  int64_t fraction = 0;
};

/// One line of a ratings file.
struct Rating {
  int32_t user = 0;  ///< Index in Ratings::users.
  int32_t item = 0;  ///< Index in Ratings::items.
  float value = 0;
  Part part = Part::kTrain;  ///< Part whose file has the line, if Ratings::has_parts.
  EventTime time = {};
};

/// A user or an item.
struct Entity {
  /// Id as in the file.
  std::string id = {};
  /// Description from the files as UTF-8 text for a language model: "Toy Story (1995). Animation, Children's, Comedy".
  /// Empty if the files have none.
  std::string text = {};
};

/// A data set as read from its files: every line is checked, none is dropped.
struct Ratings {
  /// "ml-1m", "ml-100k", "recbole", "table", or "made up" for generated data.
  std::string format = {};
  /// Path of the ratings file.
  std::string path = {};
  /// Users and items with at least one rating, in the order of their first line.
  std::vector<Entity> users = {};
  std::vector<Entity> items = {};
  /// Ratings in the order of the file.
  std::vector<Rating> rows = {};
  bool has_values = true;
  bool has_times = true;
  /// Whether a user may have several rows with one item.
  bool may_repeat = false;
  /// Whether the parts have files of their own, and whether the validation part has one.
  bool has_parts = false;
  bool has_validation = false;
  /// Messages for the user: users and items that are in their file but have no rating.
  std::vector<std::string> notes = {};
};

/// Calls `visit(row, first)` for each row of at least `min_rating` with the user and the item of an earlier such row;
/// `first` is the first of these.
void for_each_repeat(const Ratings& ratings, double min_rating,
                     absl::FunctionRef<void(int64_t row, int64_t first)> visit);

/// Returns the format names that read_ratings accepts, "auto" first.
const std::vector<std::string>& ratings_formats();

/// Layout of a table of interactions.
struct TableColumns {
  /// Columns by name, or by number from 1. Empty: the usual names (user_id, userId, user; item_id, movieId, product_id;
  /// rating, score; timestamp, time), or in a table without names columns 1 to 4 as far as there are as many. "none":
  /// the table has no ratings or no times.
  std::string user = {}, item = {}, rating = {}, time = {};
  /// Whether line 1 has the names of the columns: yes, no, or auto. auto: yes if a column above is a name, or if the
  /// line has usual names of users and items. Otherwise the other lines decide, see FirstLine; where they do not, the
  /// table is refused. A table of two columns without usual names has the users in column 1.
  std::string header = "auto";
  /// Field separator. Nothing: a comma in a .csv, else a tab. A .jsonl has named fields.
  std::optional<char> delimiter = {};
};

struct RatingsOptions {
  /// One of ratings_formats().
  std::string format = "auto";
  TableColumns table = {};
  /// Tables of the validation and test parts, for a table of training interactions. Empty: not given.
  std::string validation = {}, test = {};
  /// Whether a user may have several rows with one item. Unset: only in tables.
  std::optional<bool> may_repeat = {};
};

/// Reads a folder:
///   ml-1m    ratings.dat, movies.dat, users.dat: "::" between fields (also MovieLens 10M's half stars)
///   ml-100k  u.data, u.item, u.user: tabs, and "|" in the latter two
///   recbole  one NAME.inter with a header ("user_id:token", "item_id:token", optionally "rating:float" and
///            "timestamp:float"); NAME.item and NAME.user if they exist. `path` may also be the .inter file.
///   table    one .csv, .tsv or .jsonl, or ratings.csv or interactions.csv among several; `path` may also be a file of
///            any name. See TableReader.
/// Each file may be packed with gzip: a table as NAME.csv.gz, the others with the names above.
/// Times are numbers (seconds, milliseconds, microseconds or nanoseconds since 1970, with or without a fraction; one
/// unit per data set), or ISO 8601 dates such as "2024-05-01T12:30:00.25+02:00" (with a time zone or without, alike in
/// all rows).
/// "auto" takes the first format found, in the order ml-100k, ml-1m, recbole, table.
///
/// Errors, exit code 4, with file and line: those of TextFile; data.ratings for a wrong number of fields, an invalid
/// id, rating or time, an id that the other files lack, a duplicate pair (names both lines), times in several
/// units or forms, a line 1 that may be names or data, fewer than two users or items; data.items and data.users
/// likewise, and for an unknown genre, gender, age or occupation. data.missing if the folder has no such files.
/// cli.value (exit code 2) for options of tables with another format.
absl::StatusOr<Ratings> read_ratings(const std::string& path, const RatingsOptions& options = {});

/// Size of generated ratings.
struct DemoRatingsOptions {
  int64_t users = 300;
  int64_t items = 200;
  /// Mean number of ratings per user.
  int64_t ratings_per_user = 40;
  uint64_t seed = 0;
};

/// Writes a generated data set in all three formats to the folders ml-1m, ml-100k and recbole of `folder`. The contents
/// are equal except for fields that a format lacks. Users prefer some genres; items have a few genres each, and differ
/// in popularity. Deterministic for given options.
absl::Status write_demo_ratings(const std::string& folder, const DemoRatingsOptions& options = {});

/// Returns the same data as read_ratings would, without files. The format is "made up", the path "nowhere".
Ratings make_demo_ratings(const DemoRatingsOptions& options = {});

namespace detail {

// Readers of the formats; read_ratings chooses one.
absl::StatusOr<Ratings> read_movielens_1m(const std::string& folder, bool may_repeat);
absl::StatusOr<Ratings> read_movielens_100k(const std::string& folder, bool may_repeat);
absl::StatusOr<Ratings> read_recbole(const std::string& inter_path, bool may_repeat);
absl::StatusOr<Ratings> read_tables(const std::string& path, const RatingsOptions& options);

// Names in MovieLens 1M: genres, occupations by code, and age groups by their lower bound.
const std::vector<std::string>& movielens_genres();
const std::vector<std::string>& movielens_occupations();
const std::vector<std::pair<int64_t, std::string>>& movielens_ages();

}  // namespace detail

}  // namespace trainkit::rec
