#pragma once
/// Rows of a table as inputs of a model: numbers standardised, categories as indices, missing values marked.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trainkit/data/batch.h"
#include "trainkit/data/dataset.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/io/table.h"

namespace trainkit {

struct TableSchemaOptions {
  /// The column to predict.
  std::string target = {};
  /// Whether the target is a class, also if its values are numbers. By default it is one if they are not.
  bool target_is_class = false;
  /// Columns that are no features.
  std::vector<std::string> ignore = {};
  /// Columns of numbers that name something, such as postcodes: categories.
  std::vector<std::string> categories = {};
  /// Fields that mean that a value is missing.
  std::vector<std::string> missing = {"", "NA", "N/A", "nan", "NaN", "null", "NULL", "?"};
  /// Most categories of a column that is not in `categories`: more are a mistake, such as a column of names.
  int64_t max_categories = 1000;
};

/// What the columns of a table were in training. Stored next to the weights, it makes the same inputs of rows to
/// predict.
class TableSchema {
 public:
  struct Column {
    std::string name = {};
    bool is_number = true;
    /// Of a number in the training rows: mean and standard deviation (divisor n; 1 if all values are equal), and
    /// whether values were missing.
    double mean = 0, deviation = 1;
    bool has_missing = false;
    /// Of a category: its values in the training rows, in ascending order.
    std::vector<std::string> values = {};
  };

  /// Learns the columns from training rows of `table`. A column is one of numbers if all its values in the whole table
  /// are, as decimals with a point. The values of a target that is a class are those of the whole table. Errors
  /// data.<kind> of the table: an unknown column, a missing target, a column of too many categories.
  static absl::StatusOr<TableSchema> learn(const Table& table, std::span<const int64_t> training_rows,
                                           TableSchemaOptions options);
  /// Reads or writes the schema as JSON. Errors: exit code 5 (run.file) for a damaged file, 6 if the disk fails.
  static absl::StatusOr<TableSchema> load(const std::string& path);
  absl::Status save(const std::string& path) const;

  const std::vector<Column>& features() const { return features_; }
  const Column& target() const { return target_; }
  const TableSchemaOptions& options() const { return options_; }

  /// Number of inputs of a model, see inputs().
  int64_t width() const;
  /// Returns the features of a batch of a TableDataset as (B, width) float32 on its device: the standardised numbers,
  /// with 0 for a missing one; for each number that was missing in training whether it is; then one column for each
  /// category, the first for unknown ones. Does not synchronise.
  at::Tensor inputs(const Batch& batch) const;

 private:
  friend class TableDataset;
  TableSchemaOptions options_;
  std::vector<Column> features_;
  Column target_;
};

/// A value of a row in memory: missing, a number, or text (a number as text is parsed).
using TableValue = std::variant<std::monostate, double, std::string>;

/// Rows of a table. Fields of a batch: "numbers" (F) float32 and "categories" (C) int64, for TableSchema::inputs, and
/// "y", the target: float64 in its own units, or the index of its class as int64.
class TableDataset final : public Dataset {
 public:
  /// Reads all rows of `table`, which stays in memory as tensors. Without the column of the target there is no field
  /// "y". Errors data.<kind> of the table, with line and column: a missing column or target, a field that is no number,
  /// a target that is no class of the schema.
  static absl::StatusOr<std::shared_ptr<const TableDataset>> create(const Table& table, const TableSchema& schema);
  /// Makes rows from values in memory, by column; a column that a row lacks is missing. Errors: data.row (exit code 4)
  /// for a column that the schema does not have, and text where a number is needed.
  static absl::StatusOr<std::shared_ptr<const TableDataset>> create(
      std::span<const std::map<std::string, TableValue>> rows, const TableSchema& schema);

  int64_t size() const override { return rows_.size(); }
  const std::vector<FieldSpec>& fields() const override { return rows_.fields(); }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override { rows_.get(key, out, at); }
  void get_batch(std::span<const RowKey> keys, const BatchView& out) const override { rows_.get_batch(keys, out); }
  void prefetch(int64_t index) const override { rows_.prefetch(index); }
  /// "sales.csv:17"
  std::string describe(int64_t index) const override;

  /// Values per column that were not in the training rows: unknown categories, and missing values where none were.
  const std::map<std::string, int64_t>& unknown() const { return unknown_; }
  /// One line for each such column: "city: 1 value was not in the training rows".
  std::vector<std::string> describe_unknown() const;

 private:
  class Encoder;
  TableDataset(TensorDataset rows, std::string path, std::vector<int64_t> lines, std::map<std::string, int64_t> unknown)
      : rows_(std::move(rows)), path_(std::move(path)), lines_(std::move(lines)), unknown_(std::move(unknown)) {}
  TensorDataset rows_;
  std::string path_;
  std::vector<int64_t> lines_;
  std::map<std::string, int64_t> unknown_;
};

}  // namespace trainkit
