// Reads MovieLens files. Source: the README files of ml-1m and ml-100k (GroupLens, University of Minnesota).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "gpt2_recommender/entity_table.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::rec::detail {
namespace {

/// Opens a file without the names of its columns.
absl::StatusOr<std::unique_ptr<TableReader>> open(const std::string& path, const char* kind, const char* separator,
                                                  std::vector<std::string> columns) {
  TableOptions options = published_table(kind, separator);
  options.header = false;
  options.names = std::move(columns);
  return TableReader::open(path, options);
}

/// Parses an id: a whole number from 1 to 2^31 - 1. Returns it without leading zeros.
absl::StatusOr<std::string> id_of(const TableReader& row, size_t column) {
  int64_t id = 0;
  if (!parse_number(row.text(column), id) || id < 1 || id > std::numeric_limits<int32_t>::max()) {
    return row.bad(column, "not an id", "a whole number from 1 to 2147483647");
  }
  return std::to_string(id);
}

absl::StatusOr<double> rating_of(const TableReader& row, size_t column) {
  double rating = 0;
  if (!parse_number(row.text(column), rating)) return row.bad(column, "not a number", "0.5 to 5");
  if (rating < 0.5 || rating > 5) return row.bad(column, "out of range", "0.5 to 5");
  return rating;
}

absl::Status add_ratings(TableReader& row, RatingsBuilder& builder) {
  while (true) {
    TRAINKIT_ASSIGN_OR_RETURN(const bool more, row.next());
    if (!more) return absl::OkStatus();
    TRAINKIT_ASSIGN_OR_RETURN(const std::string user, id_of(row, 0));
    TRAINKIT_ASSIGN_OR_RETURN(const std::string item, id_of(row, 1));
    TRAINKIT_ASSIGN_OR_RETURN(const double rating, rating_of(row, 2));
    TRAINKIT_ASSIGN_OR_RETURN(const ParsedTime time, rating_time(row, 3));
    if (time.time < EventTime()) return row.bad(3, "not a time", "seconds or milliseconds since 1970");
    TRAINKIT_RETURN_IF_ERROR(builder.add(user, item, rating, time));
  }
}

std::string item_text(const std::string& title, const std::vector<std::string>& genres) {
  return fmt::format("{}. {}", title, fmt::join(genres, ", "));
}

absl::StatusOr<std::string> gender(const TableReader& row, size_t column) {
  if (row.text(column) == "M") return "male";
  if (row.text(column) == "F") return "female";
  return row.bad(column, "unknown", "M or F");
}

/// Reads users or items, whose ids are in the first column.
absl::StatusOr<EntityTable> read_entities(absl::StatusOr<std::unique_ptr<TableReader>> opened,
                                          absl::StatusOr<std::string> (*describe)(const TableReader&)) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto row, std::move(opened));
  EntityTable table(row->columns()[0], row->path());
  while (true) {
    TRAINKIT_ASSIGN_OR_RETURN(const bool more, row->next());
    if (!more) return table;
    TRAINKIT_ASSIGN_OR_RETURN(const std::string id, id_of(*row, 0));
    TRAINKIT_ASSIGN_OR_RETURN(std::string described, describe(*row));
    TRAINKIT_RETURN_IF_ERROR(table.add(*row, id, std::move(described)));
  }
}

absl::StatusOr<std::string> title_of(const TableReader& row) {
  if (row.text(1).empty()) return row.bad(1, "empty");
  return std::string(row.text(1));
}

absl::StatusOr<std::string> describe_movie_1m(const TableReader& row) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string title, title_of(row));
  std::vector<std::string_view> names;
  split_fields(row.text(2), "|", names);
  std::vector<std::string> genres;
  for (const std::string_view name : names) {
    const auto& known = movielens_genres();
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      const std::string nearest = nearest_name(name, known);
      return row.bad_row("genre", "unknown", name, "one of MovieLens' genres",
                         nearest.empty() ? "" : fmt::format("did you mean {}?", nearest));
    }
    genres.emplace_back(name);
  }
  return item_text(title, genres);
}

absl::StatusOr<std::string> describe_user_1m(const TableReader& row) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string sex, gender(row, 1));
  int64_t age = -1, occupation = -1;
  parse_number(row.text(2), age);
  parse_number(row.text(3), occupation);
  const auto& ages = movielens_ages();
  const auto bracket = std::find_if(ages.begin(), ages.end(), [&](const auto& entry) { return entry.first == age; });
  if (bracket == ages.end()) return row.bad(2, "unknown", "1, 18, 25, 35, 45, 50 or 56");
  const auto& occupations = movielens_occupations();
  if (occupation < 0 || occupation >= static_cast<int64_t>(occupations.size())) {
    return row.bad(3, "unknown", fmt::format("0 to {}", occupations.size() - 1));
  }
  return fmt::format("{}, age {}, {}", sex, bracket->second, occupations[occupation]);
}

// MovieLens 100k has one flag per genre, in this order.
constexpr const char* kGenres100k[] = {"unknown",   "Action",   "Adventure",   "Animation", "Children's",
                                       "Comedy",    "Crime",    "Documentary", "Drama",     "Fantasy",
                                       "Film-Noir", "Horror",   "Musical",     "Mystery",   "Romance",
                                       "Sci-Fi",    "Thriller", "War",         "Western"};

absl::StatusOr<std::string> describe_movie_100k(const TableReader& row) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string title, title_of(row));
  std::vector<std::string> genres;
  for (size_t i = 0; i < std::size(kGenres100k); ++i) {
    const std::string_view flag = row.text(5 + i);
    if (flag != "0" && flag != "1") return row.bad(5 + i, "not a flag", "0 or 1");
    if (flag == "1") genres.emplace_back(kGenres100k[i]);
  }
  if (!genres.empty()) return item_text(title, genres);
  return row.bad_row("genre", "none of the flags is set", "", "at least one");
}

absl::StatusOr<std::string> describe_user_100k(const TableReader& row) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string sex, gender(row, 2));
  int64_t age = 0;
  if (!parse_number(row.text(1), age) || age < 1 || age > 120) return row.bad(1, "not an age", "1 to 120");
  if (row.text(3).empty()) return row.bad(3, "empty");
  return fmt::format("{}, age {}, {}", sex, age, row.text(3));
}

absl::StatusOr<Ratings> read(const std::string& path, const char* separator, const EntityTable& users,
                             const EntityTable& items, const char* format, bool may_repeat) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto file, open(path, "ratings", separator, {"user", "item", "rating", "timestamp"}));
  RatingsBuilder builder(&users, &items, may_repeat);
  builder.use(*file);
  TRAINKIT_RETURN_IF_ERROR(add_ratings(*file, builder));
  return std::move(builder).finish(format);
}

}  // namespace

const std::vector<std::string>& movielens_genres() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all(std::begin(kGenres100k), std::end(kGenres100k));
    all.insert(all.end(), {"IMAX", "(no genres listed)"});  // in MovieLens 10M
    return all;
  }();
  return names;
}

const std::vector<std::string>& movielens_occupations() {
  static const std::vector<std::string> names = {"other",
                                                 "academic/educator",
                                                 "artist",
                                                 "clerical/admin",
                                                 "college/grad student",
                                                 "customer service",
                                                 "doctor/health care",
                                                 "executive/managerial",
                                                 "farmer",
                                                 "homemaker",
                                                 "K-12 student",
                                                 "lawyer",
                                                 "programmer",
                                                 "retired",
                                                 "sales/marketing",
                                                 "scientist",
                                                 "self-employed",
                                                 "technician/engineer",
                                                 "tradesman/craftsman",
                                                 "unemployed",
                                                 "writer"};
  return names;
}

const std::vector<std::pair<int64_t, std::string>>& movielens_ages() {
  static const std::vector<std::pair<int64_t, std::string>> brackets = {
      {1, "under 18"}, {18, "18-24"}, {25, "25-34"}, {35, "35-44"}, {45, "45-49"}, {50, "50-55"}, {56, "56+"}};
  return brackets;
}

absl::StatusOr<Ratings> read_movielens_1m(const std::string& folder, bool may_repeat) {
  TRAINKIT_ASSIGN_OR_RETURN(
      const EntityTable users,
      read_entities(open(folder + "/users.dat", "users", "::", {"user", "gender", "age", "occupation", "zip code"}),
                    describe_user_1m));
  TRAINKIT_ASSIGN_OR_RETURN(
      const EntityTable items,
      read_entities(open(folder + "/movies.dat", "items", "::", {"item", "title", "genres"}), describe_movie_1m));
  return read(folder + "/ratings.dat", "::", users, items, "ml-1m", may_repeat);
}

absl::StatusOr<Ratings> read_movielens_100k(const std::string& folder, bool may_repeat) {
  TRAINKIT_ASSIGN_OR_RETURN(
      const EntityTable users,
      read_entities(open(folder + "/u.user", "users", "|", {"user", "age", "gender", "occupation", "zip code"}),
                    describe_user_100k));
  std::vector<std::string> columns = {"item", "title", "release date", "video release date", "URL"};
  columns.insert(columns.end(), std::begin(kGenres100k), std::end(kGenres100k));
  TRAINKIT_ASSIGN_OR_RETURN(
      const EntityTable items,
      read_entities(open(folder + "/u.item", "items", "|", std::move(columns)), describe_movie_100k));
  return read(folder + "/u.data", "\t", users, items, "ml-100k", may_repeat);
}

}  // namespace trainkit::rec::detail
