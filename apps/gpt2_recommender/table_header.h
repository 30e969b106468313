#pragma once
/// Decides whether line 1 of a table has the names of its columns or data.

#include <string>
#include <string_view>
#include <vector>

namespace trainkit::rec::detail {

/// Judges the first line of a table by the other lines.
///
/// It is data if its user or item is in another line (other than a copy of line 1), since names of columns are no ids.
/// It has names if a column has text in line 1 and numbers everywhere else, or no digit in line 1 and digits everywhere
/// else. Otherwise a number in line 1 makes it data. Unclear: lines with text only, and lines with signs of both.
class FirstLine {
 public:
  enum class Verdict { kNames, kData, kUnclear };

  /// `first` are the fields of line 1. `user` and `item` are the positions of these columns.
  FirstLine(const std::vector<std::string_view>& first, size_t user, size_t item);

  /// Takes the fields of another line.
  void see(const std::vector<std::string_view>& fields);
  /// Takes that a column of ids has the usual name of one.
  void see_usual_name() { has_name_ = true; }
  /// Takes that another table has the user or the item.
  void see_known_id() { repeats_ = true; }
  /// Whether further lines cannot change the verdict.
  bool is_settled() const;
  Verdict verdict() const;

 private:
  struct Column {
    std::string text;
    bool is_number = false, has_digit = false;
    int64_t others = 0;
    bool others_are_numbers = true, others_have_digits = true;

    bool may_be_name() const;
  };
  bool is_copy(const std::vector<std::string_view>& fields) const;

  std::vector<Column> columns_;
  size_t ids_[2];
  bool repeats_ = false, has_name_ = false;
};

}  // namespace trainkit::rec::detail
