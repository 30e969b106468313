#pragma once
/// Shares code between the readers of ratings: maps ids to numbers and collects rows into Ratings.

#include <absl/status/status.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gpt2_recommender/ratings.h"
#include "trainkit/io/table.h"

namespace trainkit::rec::detail {

/// Options of MovieLens' and RecBole's files, whose fields have no quotes. Titles may be in Latin-1. A file that ends
/// inside a line is truncated.
TableOptions published_table(const char* kind, const char* separator);

/// Numbers of users or items by id. An id that is a whole number below 2^22, as in most data sets, is an index of a
/// table; others are in a hash map.
class NumbersById {
 public:
  static constexpr int32_t kNone = -1;

  /// Returns the number of an id; kNone if it has none.
  int32_t find(std::string_view id) const;
  /// Gives an id that has none its number, 0 or more.
  void add(std::string_view id, int32_t number);
  bool contains(std::string_view id) const { return find(id) != kNone; }
  int32_t size() const { return size_; }

 private:
  struct Hash {
    using is_transparent = void;  // finds without a copy of the id
    size_t operator()(std::string_view id) const { return std::hash<std::string_view>()(id); }
  };
  std::vector<int32_t> table_;
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> others_;
  int32_t size_ = 0;
};

/// Holds the users or items that a file describes, by id.
class EntityTable {
 public:
  /// `noun` is "user" or "item", for messages.
  EntityTable(std::string noun, std::string path) : noun_(std::move(noun)), path_(std::move(path)) {}

  /// Adds the entity of a row. Error data.<kind of the file> for a duplicate id.
  absl::Status add(const TableReader& row, std::string_view id, std::string text);
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
  NumbersById by_id_;
};

/// Forms of a time. Times of different forms are not comparable.
enum class TimeForm { kNone, kSeconds, kMilliseconds, kMicroseconds, kNanoseconds, kDate, kZonedDate };

/// A time, its form and its text in the file.
struct ParsedTime {
  EventTime time = {};
  TimeForm form = TimeForm::kNone;
  std::string_view text = {};
};

/// Parses a time exactly; see read_ratings for the forms. A number is in seconds below 10^11, then in milliseconds,
/// microseconds (from 10^14) and nanoseconds (from 10^17). nullopt for another text, for a number beyond 64 bits and
/// for one with more than 18 decimal places.
std::optional<ParsedTime> parse_time(std::string_view text);

/// Collects the rows of one or more ratings files. Accepts any id if the table of users or items is nullptr.
class RatingsBuilder {
 public:
  RatingsBuilder(const EntityTable* users, const EntityTable* items, bool may_repeat) : tables_{users, items} {
    ratings_.may_repeat = may_repeat;
  }

  /// Starts with the rows of `file`, which must outlive the builder. Each part has at most one file.
  void use(const TableReader& file, Part part = Part::kTrain);
  /// Adds the rating of the present row. Errors: an id that its table lacks, and times of several forms.
  absl::Status add(std::string_view user, std::string_view item, double value, const ParsedTime& time);
  /// Whether a row before has this user (0) or item (1).
  bool contains(int which, std::string_view id) const { return numbers_[which].contains(id); }
  /// Checks the rules for all rows and returns the ratings: no duplicate pair unless pairs may repeat, at least two
  /// users and two items.
  absl::StatusOr<Ratings> finish(std::string format) &&;

 private:
  absl::StatusOr<int32_t> number(int which, std::string_view id);
  absl::Status check_pairs() const;

  const TableReader& file_of(Part part) const { return *files_[static_cast<size_t>(part)]; }

  const TableReader* files_[3] = {};
  Part part_ = Part::kTrain;
  const EntityTable* tables_[2];
  NumbersById numbers_[2];
  Ratings ratings_;
  std::vector<int64_t> lines_;
  TimeForm first_form_ = TimeForm::kNone;
  std::string first_time_;  // its text
};

/// Parses a time with parse_time.
absl::StatusOr<ParsedTime> rating_time(const TableReader& row, size_t column);

}  // namespace trainkit::rec::detail
