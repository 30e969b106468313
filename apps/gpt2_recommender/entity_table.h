#pragma once
/// Shares code between the readers of ratings: maps ids to numbers and collects rows into Ratings.

#include <absl/status/status.h>

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gpt2_recommender/line_file.h"
#include "gpt2_recommender/ratings.h"

namespace trainkit::rec::detail {

/// Holds the users or items that a file describes, by id.
class EntityTable {
 public:
  /// `noun` is "user" or "item", for messages.
  EntityTable(std::string noun, std::string path) : noun_(std::move(noun)), path_(std::move(path)) {}

  /// Adds an entity. Error data.<kind of the file> for a duplicate id.
  absl::Status add(const LineFile& file, int64_t line, std::string_view id, std::string text);
  /// Returns the entity of that id; nullptr if there is none.
  const Entity* find(std::string_view id) const;

  const std::string& path() const { return path_; }
  /// Describes entities of this table that are not in `used`: "users.dat:7: user 7 has no rating, and 5 more". Empty if
  /// there are none.
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

/// Collects the rows of one or more ratings files. Accepts any id if the table of users or items is nullptr.
class RatingsBuilder {
 public:
  RatingsBuilder(const EntityTable* users, const EntityTable* items, bool may_repeat) : tables_{users, items} {
    ratings_.may_repeat = may_repeat;
  }

  /// Starts with the rows of `file`, which must outlive the builder. Each part has at most one file.
  void use(const LineFile& file, Part part = Part::kTrain);
  /// Adds a rating. Errors: an id that its table lacks, and seconds mixed with milliseconds.
  absl::Status add(int64_t line, std::string_view user, std::string_view item, double value, int64_t time);
  /// Checks the rules for all rows and returns the ratings: no duplicate pair unless pairs may repeat, at least two
  /// users and two items.
  absl::StatusOr<Ratings> finish(std::string format) &&;

 private:
  absl::StatusOr<int32_t> number(int64_t line, int which, std::string_view id);
  absl::Status check_pairs() const;

  const LineFile& file_of(Part part) const { return *files_[static_cast<size_t>(part)]; }

  const LineFile* files_[3] = {};
  Part part_ = Part::kTrain;
  const EntityTable* tables_[2];
  std::unordered_map<std::string, int32_t> numbers_[2];
  Ratings ratings_;
  std::vector<int64_t> lines_;
  int64_t first_time_ = 0;
};

/// Parses an id of MovieLens: a whole number from 1 to 2^31 - 1. Returns it without leading zeros.
absl::StatusOr<std::string> movielens_id(const LineFile& file, int64_t line, const char* noun, std::string_view text);
/// Parses a rating of MovieLens: 0.5 to 5.
absl::StatusOr<double> movielens_rating(const LineFile& file, int64_t line, std::string_view text);
/// Parses a time: seconds or milliseconds since 1970, 0 or more. Drops the fraction of a decimal number.
absl::StatusOr<int64_t> rating_time(const LineFile& file, int64_t line, std::string_view text);

/// Checks that `fields` equals `expected`. `layout` shows the fields in the error:
/// "UserID::MovieID::Rating::Timestamp".
absl::Status check_fields(const LineFile& file, int64_t line, std::string_view text, size_t fields, size_t expected,
                          const char* layout);

}  // namespace trainkit::rec::detail
