#include "trainkit/data/table_dataset.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>

#include "data/tables/table_fields.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

using detail::is_missing;
using detail::number_of;

/// Returns 1 + the position of a value, 0 if it is unknown.
int64_t category_of(const TableSchema::Column& column, std::string_view value) {
  const auto found = std::lower_bound(column.values.begin(), column.values.end(), value);
  return found != column.values.end() && *found == value ? 1 + (found - column.values.begin()) : 0;
}

}  // namespace

/// Writes the values of rows into tensors.
class TableDataset::Encoder {
 public:
  Encoder(const TableSchema& schema, int64_t rows, bool has_target) {
    int64_t numbers = 0, flags = 0, categories = 0;
    for (const TableSchema::Column& column : schema.features()) {
      numbers += column.is_number;
      flags += column.is_number && column.has_missing;
      categories += !column.is_number;
    }
    flag_ = numbers;
    if (numbers > 0) numbers_ = at::empty({rows, numbers + flags}, at::kFloat);
    if (categories > 0) categories_ = at::empty({rows, categories}, at::kLong);
    if (has_target) target_ = at::empty({rows}, schema.target().is_number ? at::kDouble : at::kLong);
  }

  /// A number of a feature, or a missing one.
  void set_number(int64_t row, const TableSchema::Column& column, int64_t at, int64_t& flag,
                  std::optional<double> value) {
    float* const out = numbers_.mutable_data_ptr<float>() + row * numbers_.size(1);
    out[at] = value ? static_cast<float>((*value - column.mean) / column.deviation) : 0.0F;
    if (column.has_missing) {
      out[flag_ + flag++] = value ? 0.0F : 1.0F;
    } else if (!value) {
      ++unknown_[column.name];
    }
  }
  void set_category(int64_t row, const TableSchema::Column& column, int64_t at, std::string_view value) {
    const int64_t index = category_of(column, value);
    if (index == 0) ++unknown_[column.name];
    categories_.mutable_data_ptr<int64_t>()[row * categories_.size(1) + at] = index;
  }
  void set_target(int64_t row, double value) { target_.mutable_data_ptr<double>()[row] = value; }
  void set_class(int64_t row, int64_t index) { target_.mutable_data_ptr<int64_t>()[row] = index; }

  std::shared_ptr<const TableDataset> finish(std::string path, std::vector<int64_t> lines) {
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    if (numbers_.defined()) tensors.emplace_back("numbers", numbers_);
    if (categories_.defined()) tensors.emplace_back("categories", categories_);
    if (target_.defined()) tensors.emplace_back("y", target_);
    return std::shared_ptr<const TableDataset>(
        new TableDataset(TensorDataset(std::move(tensors)), std::move(path), std::move(lines), std::move(unknown_)));
  }

 private:
  int64_t flag_ = 0;  // position of the first flag of a missing number
  at::Tensor numbers_, categories_, target_;
  std::map<std::string, int64_t> unknown_;
};

absl::StatusOr<std::shared_ptr<const TableDataset>> TableDataset::create(const Table& table,
                                                                         const TableSchema& schema) {
  const auto& missing = schema.options().missing;
  std::vector<int64_t> columns;
  for (const TableSchema::Column& column : schema.features()) {
    TRAINKIT_ASSIGN_OR_RETURN(columns.emplace_back(), table.column(column.name));
  }
  const bool has_target = table.contains(schema.target().name);
  const int64_t target = has_target ? table.column(schema.target().name).value() : -1;
  Encoder encoder(schema, table.rows(), has_target);
  std::vector<int64_t> lines;
  for (int64_t row = 0; row < table.rows(); ++row) {
    lines.push_back(table.line(row));
    int64_t number = 0, flag = 0, category = 0;
    for (size_t i = 0; i < columns.size(); ++i) {
      const TableSchema::Column& column = schema.features()[i];
      const std::string_view field = table.at(row, columns[i]);
      if (!column.is_number) {
        encoder.set_category(row, column, category++, field);
        continue;
      }
      const std::optional<double> value = is_missing(missing, field) ? std::nullopt : number_of(field);
      if (!value && !is_missing(missing, field)) {
        return table.bad(row, columns[i], "not a number", "a number, as in the training rows");
      }
      encoder.set_number(row, column, number++, flag, value);
    }
    if (!has_target) continue;
    const std::string_view field = table.at(row, target);
    if (is_missing(missing, field)) {
      return table.bad(row, target, "the target is missing", "", "remove rows without a target");
    }
    if (schema.target().is_number) {
      const std::optional<double> value = number_of(field);
      if (!value) return table.bad(row, target, "not a number", "a number, as in the training rows");
      encoder.set_target(row, *value);
    } else {
      const int64_t index = category_of(schema.target(), field);
      if (index == 0) return table.bad(row, target, "not a class of the training table");
      encoder.set_class(row, index - 1);
    }
  }
  return encoder.finish(table.path(), std::move(lines));
}

absl::StatusOr<std::shared_ptr<const TableDataset>> TableDataset::create(
    std::span<const std::map<std::string, TableValue>> rows, const TableSchema& schema) {
  Encoder encoder(schema, std::ssize(rows), /*has_target=*/false);
  for (int64_t row = 0; row < std::ssize(rows); ++row) {
    const auto& values = rows[static_cast<size_t>(row)];
    size_t used = values.count(schema.target().name);
    int64_t number = 0, flag = 0, category = 0;
    for (const TableSchema::Column& column : schema.features()) {
      const auto found = values.find(column.name);
      const TableValue value = found == values.end() ? TableValue() : found->second;
      used += found != values.end();
      const auto* const text = std::get_if<std::string>(&value);
      const auto* const given = std::get_if<double>(&value);
      if (!column.is_number) {
        encoder.set_category(row, column, category++, text ? *text : given ? fmt::format("{}", *given) : "");
        continue;
      }
      std::optional<double> parsed = given ? std::optional(*given) : std::nullopt;
      if (text && !is_missing(schema.options().missing, *text)) {
        parsed = number_of(*text);
        if (!parsed) {
          return data_error("data.row", {.file = fmt::format("row {}", row), .field = column.name}, "not a number",
                            *text);
        }
      }
      encoder.set_number(row, column, number++, flag, parsed);
    }
    if (used == values.size()) continue;
    for (const auto& [name, value] : values) {
      const auto is_it = [&name = name](const TableSchema::Column& column) { return column.name == name; };
      if (name == schema.target().name || std::any_of(schema.features().begin(), schema.features().end(), is_it))
        continue;
      return data_error("data.row", {.file = fmt::format("row {}", row), .field = name}, "no column of the training");
    }
  }
  return encoder.finish("", {});
}

std::string TableDataset::describe(int64_t index) const {
  if (lines_.empty()) return fmt::format("row {}", index);
  return fmt::format("{}:{}", path_, lines_[static_cast<size_t>(index)]);
}

std::vector<std::string> TableDataset::describe_unknown() const {
  std::vector<std::string> lines;
  for (const auto& [column, count] : unknown_) {
    lines.push_back(
        fmt::format("{}: {} value{} not in the training rows", column, count, count == 1 ? " was" : "s were"));
  }
  return lines;
}

}  // namespace trainkit
