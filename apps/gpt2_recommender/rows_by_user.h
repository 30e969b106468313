#pragma once
/// Groups rows by their users.

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace trainkit::rec {

/// Holds the rows of each user, in the order of the rows.
class RowsByUser {
 public:
  /// Groups the rows 0 to rows - 1 for which `is_taken(row)`. `user_of(row)` is below `users`.
  template <class UserOf, class IsTaken>
  RowsByUser(int64_t rows, size_t users, UserOf user_of, IsTaken is_taken) : ends_(users + 1) {
    for (int64_t row = 0; row < rows; ++row) ends_[static_cast<size_t>(user_of(row)) + 1] += is_taken(row);
    std::partial_sum(ends_.begin(), ends_.end(), ends_.begin());
    rows_.resize(static_cast<size_t>(ends_.back()));
    // Until here ends_[u] is where the rows of user u begin. Each row moves it on; at last it is where they end.
    for (int64_t row = 0; row < rows; ++row) {
      if (is_taken(row)) rows_[static_cast<size_t>(ends_[static_cast<size_t>(user_of(row))]++)] = row;
    }
  }

  size_t num_users() const { return ends_.size() - 1; }
  std::span<int64_t> of(size_t user) {
    const int64_t begin = user == 0 ? 0 : ends_[user - 1];
    return {rows_.data() + begin, static_cast<size_t>(ends_[user] - begin)};
  }

 private:
  std::vector<int64_t> ends_;
  std::vector<int64_t> rows_;
};

}  // namespace trainkit::rec
