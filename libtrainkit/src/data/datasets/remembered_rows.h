#pragma once
/// Errors of rows that are read once.

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trainkit/core/error.h"
#include "trainkit/data/dataset.h"

namespace trainkit::detail {

/// Wraps a data set and remembers the lasting errors of its rows: later reads repeat the error. Thread-safe.
class RememberedRows final : public Dataset {
 public:
  RememberedRows(std::shared_ptr<const Dataset> rows, std::function<bool(const Error&)> is_lasting)
      : rows_(std::move(rows)), is_lasting_(std::move(is_lasting)) {}

  int64_t size() const override { return rows_->size(); }
  const std::vector<FieldSpec>& fields() const override { return rows_->fields(); }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  std::string describe(int64_t index) const override { return rows_->describe(index); }

  /// Returns the rows known to be bad, with their errors, as JSON. `origin` identifies the rows.
  std::string to_json(const std::string& origin) const;
  /// Adds the bad rows of such a JSON text. Ignores a text that is empty, damaged or has another origin.
  void read_json(const std::string& json, const std::string& origin);
  /// Number of rows known to be bad.
  int64_t bad() const;

 private:
  std::shared_ptr<const Dataset> rows_;
  std::function<bool(const Error&)> is_lasting_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<int64_t, absl::Status> bad_;
};

}  // namespace trainkit::detail
