#pragma once
/// What the readers of ratings share: ids on their way to numbers, and rows on their way into Ratings.

#include <absl/status/status.h>

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gpt2_recommender/line_file.h"
#include "gpt2_recommender/ratings.h"

namespace trainkit::rec::detail {

/// The users or the items of a file that describes them, by id.
class EntityTable {
 public:
  /// `noun`: "user" or "item", for messages.
  EntityTable(std::string noun, std::string path) : noun_(std::move(noun)), path_(std::move(path)) {}

  /// The error is data.<kind of the file> for an id that stood before.
  absl::Status add(const LineFile& file, int64_t line, std::string_view id, std::string text);
  /// nullptr if there is no such id.
  const Entity* find(std::string_view id) const;

  const std::string& path() const { return path_; }
  /// "users.dat:7: user 7 has no rating, and 5 more"; empty if all of `used` are there.
  std::string unused_note(const std::vector<Entity>& used) const;

 private:
  struct Row {
    Entity entity;
    int64_t line;
  };
  std::string noun_, path_;
  std::vector<Row> rows_;
  std::unordered_map<std::string, size_t> by_id_;
};

/// Collects the rows of a ratings file. Without a table of users or items any id is taken.
class RatingsBuilder {
 public:
  RatingsBuilder(const LineFile& file, const EntityTable* users, const EntityTable* items)
      : file_(file), tables_{users, items} {}

  absl::Status add(int64_t line, std::string_view user, std::string_view item, double value, int64_t time);
  /// The rules over the whole: no pair twice, one unit of time, two users and two items.
  absl::StatusOr<Ratings> finish(std::string format) &&;

 private:
  absl::StatusOr<int32_t> number(int64_t line, int which, std::string_view id);
  absl::Status check_pairs() const;

  const LineFile& file_;
  const EntityTable* tables_[2];
  std::unordered_map<std::string, int32_t> numbers_[2];
  Ratings ratings_;
  std::vector<int64_t> lines_;
  int64_t first_time_ = 0;
};

/// An id of MovieLens: a whole number from 1 to 2^31 - 1; written without leading zeros.
absl::StatusOr<std::string> movielens_id(const LineFile& file, int64_t line, const char* noun, std::string_view text);
/// A rating of MovieLens, 0.5 to 5.
absl::StatusOr<double> movielens_rating(const LineFile& file, int64_t line, std::string_view text);
absl::StatusOr<int64_t> rating_time(const LineFile& file, int64_t line, std::string_view text);

/// `fields` has `expected`, which `layout` shows ("UserID::MovieID::Rating::Timestamp").
absl::Status check_fields(const LineFile& file, int64_t line, std::string_view text, size_t fields, size_t expected,
                          const char* layout);

}  // namespace trainkit::rec::detail
