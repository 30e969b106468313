// Reads MovieLens files. Source: the README files of ml-1m and ml-100k (GroupLens, University of Minnesota).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "gpt2_recommender/entity_table.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::rec::detail {
namespace {

using Fields = std::vector<std::string_view>;

absl::Status add_ratings(const LineFile& file, std::string_view separator, const char* layout,
                         RatingsBuilder& builder) {
  Fields fields;
  return file.for_each([&](int64_t line, std::string_view text) -> absl::Status {
    split_fields(text, separator, fields);
    TRAINKIT_RETURN_IF_ERROR(check_fields(file, line, text, fields.size(), 4, layout));
    TRAINKIT_ASSIGN_OR_RETURN(const std::string user, movielens_id(file, line, "user", fields[0]));
    TRAINKIT_ASSIGN_OR_RETURN(const std::string item, movielens_id(file, line, "item", fields[1]));
    TRAINKIT_ASSIGN_OR_RETURN(const double rating, movielens_rating(file, line, fields[2]));
    TRAINKIT_ASSIGN_OR_RETURN(const ParsedTime time, rating_time(file, line, fields[3]));
    if (time.time < EventTime()) {
      return file.bad(line, "timestamp", "not a time", fields[3], "seconds or milliseconds since 1970");
    }
    return builder.add(line, user, item, rating, time);
  });
}

std::string item_text(const std::string& title, const std::vector<std::string>& genres) {
  return fmt::format("{}. {}", title, fmt::join(genres, ", "));
}

absl::StatusOr<std::string> gender(const LineFile& file, int64_t line, std::string_view text) {
  if (text == "M") return "male";
  if (text == "F") return "female";
  return file.bad(line, "gender", "unknown", text, "M or F");
}

absl::StatusOr<EntityTable> read_table(const std::string& path, const char* kind, const char* noun,
                                       std::string_view separator, size_t columns, const char* layout,
                                       absl::StatusOr<std::string> (*describe)(const LineFile&, int64_t,
                                                                               const Fields&)) {
  TRAINKIT_ASSIGN_OR_RETURN(const LineFile file, LineFile::open(path, kind));
  EntityTable table(noun, path);
  Fields fields;
  TRAINKIT_RETURN_IF_ERROR(file.for_each([&](int64_t line, std::string_view text) -> absl::Status {
    split_fields(text, separator, fields);
    TRAINKIT_RETURN_IF_ERROR(check_fields(file, line, text, fields.size(), columns, layout));
    TRAINKIT_ASSIGN_OR_RETURN(const std::string id, movielens_id(file, line, noun, fields[0]));
    TRAINKIT_ASSIGN_OR_RETURN(std::string described, describe(file, line, fields));
    return table.add(file, line, id, std::move(described));
  }));
  return table;
}

absl::StatusOr<std::string> title_of(const LineFile& file, int64_t line, std::string_view text) {
  if (text.empty()) return file.bad(line, "title", "empty");
  return file.to_utf8(text);
}

absl::StatusOr<std::string> describe_movie_1m(const LineFile& file, int64_t line, const Fields& fields) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string title, title_of(file, line, fields[1]));
  Fields names;
  split_fields(fields[2], "|", names);
  std::vector<std::string> genres;
  for (const std::string_view name : names) {
    const auto& known = movielens_genres();
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      const std::string nearest = nearest_name(name, known);
      return file.bad(line, "genre", "unknown", name, "one of MovieLens' genres",
                      nearest.empty() ? "" : fmt::format("did you mean {}?", nearest));
    }
    genres.emplace_back(name);
  }
  return item_text(title, genres);
}

absl::StatusOr<std::string> describe_user_1m(const LineFile& file, int64_t line, const Fields& fields) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string sex, gender(file, line, fields[1]));
  int64_t age = -1, occupation = -1;
  parse_number(fields[2], age);
  parse_number(fields[3], occupation);
  const auto& ages = movielens_ages();
  const auto bracket = std::find_if(ages.begin(), ages.end(), [&](const auto& entry) { return entry.first == age; });
  if (bracket == ages.end()) return file.bad(line, "age", "unknown", fields[2], "1, 18, 25, 35, 45, 50 or 56");
  const auto& occupations = movielens_occupations();
  if (occupation < 0 || occupation >= static_cast<int64_t>(occupations.size())) {
    return file.bad(line, "occupation", "unknown", fields[3], fmt::format("0 to {}", occupations.size() - 1));
  }
  return fmt::format("{}, age {}, {}", sex, bracket->second, occupations[occupation]);
}

// MovieLens 100k has one flag per genre, in this order.
constexpr const char* kGenres100k[] = {"unknown",   "Action",   "Adventure",   "Animation", "Children's",
                                       "Comedy",    "Crime",    "Documentary", "Drama",     "Fantasy",
                                       "Film-Noir", "Horror",   "Musical",     "Mystery",   "Romance",
                                       "Sci-Fi",    "Thriller", "War",         "Western"};

absl::StatusOr<std::string> describe_movie_100k(const LineFile& file, int64_t line, const Fields& fields) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string title, title_of(file, line, fields[1]));
  std::vector<std::string> genres;
  for (size_t i = 0; i < std::size(kGenres100k); ++i) {
    const std::string_view flag = fields[5 + i];
    if (flag != "0" && flag != "1") return file.bad(line, kGenres100k[i], "not a flag", flag, "0 or 1");
    if (flag == "1") genres.emplace_back(kGenres100k[i]);
  }
  if (genres.empty()) return file.bad(line, "genre", "none of the flags is set", "", "at least one");
  return item_text(title, genres);
}

absl::StatusOr<std::string> describe_user_100k(const LineFile& file, int64_t line, const Fields& fields) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string sex, gender(file, line, fields[2]));
  int64_t age = 0;
  if (!parse_number(fields[1], age) || age < 1 || age > 120) {
    return file.bad(line, "age", "not an age", fields[1], "1 to 120");
  }
  if (fields[3].empty()) return file.bad(line, "occupation", "empty");
  return fmt::format("{}, age {}, {}", sex, age, file.to_utf8(fields[3]));
}

absl::StatusOr<Ratings> read(const std::string& path, std::string_view separator, const char* layout,
                             const EntityTable& users, const EntityTable& items, const char* format, bool may_repeat) {
  TRAINKIT_ASSIGN_OR_RETURN(const LineFile file, LineFile::open(path, "ratings"));
  RatingsBuilder builder(&users, &items, may_repeat);
  builder.use(file);
  TRAINKIT_RETURN_IF_ERROR(add_ratings(file, separator, layout, builder));
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
  TRAINKIT_ASSIGN_OR_RETURN(const EntityTable users,
                            read_table(folder + "/users.dat", "users", "user", "::", 5,
                                       "UserID::Gender::Age::Occupation::Zip-code", describe_user_1m));
  TRAINKIT_ASSIGN_OR_RETURN(const EntityTable items, read_table(folder + "/movies.dat", "items", "item", "::", 3,
                                                                "MovieID::Title::Genres", describe_movie_1m));
  return read(folder + "/ratings.dat", "::", "UserID::MovieID::Rating::Timestamp", users, items, "ml-1m", may_repeat);
}

absl::StatusOr<Ratings> read_movielens_100k(const std::string& folder, bool may_repeat) {
  TRAINKIT_ASSIGN_OR_RETURN(const EntityTable users,
                            read_table(folder + "/u.user", "users", "user", "|", 5,
                                       "user id | age | gender | occupation | zip code", describe_user_100k));
  TRAINKIT_ASSIGN_OR_RETURN(
      const EntityTable items,
      read_table(folder + "/u.item", "items", "item", "|", 24,
                 "movie id | title | release date | video release date | URL | 19 genres", describe_movie_100k));
  return read(folder + "/u.data", "\t", "user id, item id, rating, timestamp, separated by tabs", users, items,
              "ml-100k", may_repeat);
}

}  // namespace trainkit::rec::detail
