#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/strict_json.h"
#include "data/tables/table_fields.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/data/table_dataset.h"
#include "trainkit/io/mapped_file.h"

namespace trainkit {
namespace {

using Json = nlohmann::ordered_json;
using detail::is_missing;
using detail::number_of;

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Whether all values of a column that are not missing are numbers, and there is one.
bool has_numbers(const Table& table, int64_t column, const TableSchemaOptions& options) {
  bool any = false;
  for (int64_t row = 0; row < table.rows(); ++row) {
    const std::string_view field = table.at(row, column);
    if (is_missing(options.missing, field)) continue;
    if (!number_of(field)) return false;
    any = true;
  }
  return any;
}

void learn_numbers(const Table& table, int64_t at, std::span<const int64_t> rows, const TableSchemaOptions& options,
                   TableSchema::Column& column) {
  std::vector<double> values;
  for (const int64_t row : rows) {
    const std::string_view field = table.at(row, at);
    if (is_missing(options.missing, field)) {
      column.has_missing = true;
    } else {
      values.push_back(*number_of(field));
    }
  }
  if (values.empty()) return;
  const auto count = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  column.mean = sum / count;
  for (const double value : values) squares += (value - column.mean) * (value - column.mean);
  const double deviation = std::sqrt(squares / count);
  column.deviation = deviation > 1e-12 * std::abs(column.mean) && deviation > 0 ? deviation : 1;
}

Json json_of(const TableSchema::Column& column) {
  if (!column.is_number) return {{"name", column.name}, {"values", column.values}};
  return {{"name", column.name},
          {"mean", column.mean},
          {"deviation", column.deviation},
          {"has_missing", column.has_missing}};
}

/// Reads a column; false if it is damaged.
bool read_column(const nlohmann::json& json, TableSchema::Column& column) {
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) return false;
  column.name = json["name"].get<std::string>();
  column.is_number = !json.contains("values");
  if (!column.is_number) {
    const auto& values = json["values"];
    const auto is_text = [](const auto& value) { return value.is_string(); };
    if (!values.is_array() || !std::all_of(values.begin(), values.end(), is_text)) return false;
    column.values = values.get<std::vector<std::string>>();
    return std::is_sorted(column.values.begin(), column.values.end());
  }
  for (const char* name : {"mean", "deviation"}) {
    if (!json.contains(name) || !json[name].is_number() || !std::isfinite(json[name].get<double>())) return false;
  }
  if (!json.contains("has_missing") || !json["has_missing"].is_boolean()) return false;
  column.mean = json["mean"].get<double>();
  column.deviation = json["deviation"].get<double>();
  column.has_missing = json["has_missing"].get<bool>();
  return column.deviation > 0;
}

}  // namespace

absl::StatusOr<TableSchema> TableSchema::learn(const Table& table, std::span<const int64_t> training_rows,
                                               TableSchemaOptions options) {
  TableSchema schema;
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t target, table.column(options.target));
  for (const auto* names : {&options.ignore, &options.categories}) {
    for (const std::string& name : *names) TRAINKIT_RETURN_IF_ERROR(table.column(name).status());
  }
  std::vector<int64_t> all(static_cast<size_t>(table.rows()));
  for (size_t row = 0; row < all.size(); ++row) all[row] = static_cast<int64_t>(row);
  for (int64_t at = 0; at < std::ssize(table.columns()); ++at) {
    Column column{.name = table.columns()[static_cast<size_t>(at)]};
    if (contains(options.ignore, column.name) && at != target) continue;
    const bool is_category = contains(options.categories, column.name) || (at == target && options.target_is_class);
    column.is_number = !is_category && has_numbers(table, at, options);
    if (column.is_number) {
      learn_numbers(table, at, training_rows, options, column);
    } else {
      std::set<std::string, std::less<>> values;
      for (const int64_t row : at == target ? std::span<const int64_t>(all) : training_rows) {
        if (at != target || !is_missing(options.missing, table.at(row, at))) values.emplace(table.at(row, at));
      }
      column.values.assign(values.begin(), values.end());
      if (!is_category && std::ssize(values) > options.max_categories) {
        return table.bad(0, at, fmt::format("{} different texts", values.size()),
                         fmt::format("numbers, or at most {} categories", options.max_categories),
                         "leave the column out, or name it as a category");
      }
    }
    if (at == target) {
      schema.target_ = std::move(column);
    } else {
      schema.features_.push_back(std::move(column));
    }
  }
  schema.options_ = std::move(options);
  return schema;
}

absl::Status TableSchema::save(const std::string& path) const {
  Json features = Json::array();
  for (const Column& column : features_) features.push_back(json_of(column));
  const Json json = {{"target", json_of(target_)}, {"features", std::move(features)}, {"missing", options_.missing}};
  return write_file_atomically(Fs::posix(), path, json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

absl::StatusOr<TableSchema> TableSchema::load(const std::string& path) {
  const Error damaged{.exit_code = ExitCode::kWeights,
                      .id = "run.file",
                      .where = path,
                      .problem = "damaged",
                      .expected = "the columns of a table, as TableSchema writes them"};
  TRAINKIT_ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  TRAINKIT_ASSIGN_OR_RETURN(const nlohmann::json json, detail::parse_strict_json(file->text(), damaged));
  TRAINKIT_RETURN_IF_ERROR(file->check());
  TableSchema schema;
  const bool has_parts = json.is_object() && json.contains("target") && json.contains("features") &&
                         json["features"].is_array() && json.contains("missing") && json["missing"].is_array();
  if (!has_parts || !read_column(json["target"], schema.target_)) return to_status(damaged);
  for (const auto& column : json["features"]) {
    if (!read_column(column, schema.features_.emplace_back())) return to_status(damaged);
  }
  schema.options_.missing.clear();
  for (const auto& word : json["missing"]) {
    if (!word.is_string()) return to_status(damaged);
    schema.options_.missing.push_back(word.get<std::string>());
  }
  schema.options_.target = schema.target_.name;
  return schema;
}

int64_t TableSchema::width() const {
  int64_t width = 0;
  for (const Column& column : features_) {
    width += column.is_number ? 1 + column.has_missing : 1 + std::ssize(column.values);
  }
  return width;
}

at::Tensor TableSchema::inputs(const Batch& batch) const {
  std::vector<at::Tensor> parts;
  int64_t category = 0;
  const auto is_number = [](const Column& column) { return column.is_number; };
  if (std::any_of(features_.begin(), features_.end(), is_number)) parts.push_back(batch["numbers"]);
  for (const Column& column : features_) {
    if (column.is_number) continue;
    const at::Tensor index = batch["categories"].narrow(1, category++, 1);
    const at::Tensor values = at::arange(1 + std::ssize(column.values), index.options());
    parts.push_back(index.eq(values).to(at::kFloat));
  }
  return at::cat(parts, 1);
}

}  // namespace trainkit
