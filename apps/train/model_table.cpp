#include "train/model_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "trainkit/core/status.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/data/sampler.h"
#include "trainkit/data/split.h"
#include "trainkit/data/tensor_dataset.h"

namespace trainkit::train {
namespace {

/// The fields of all rows.
absl::StatusOr<Batch> whole(std::shared_ptr<const Dataset> rows) {
  const int64_t count = rows->size();
  TRAINKIT_ASSIGN_OR_RETURN(const auto loader, Prefetcher::create(std::move(rows), SequentialSampler(count),
                                                                  {.batch_size = count, .num_workers = 0}));
  TRAINKIT_ASSIGN_OR_RETURN(std::optional<Batch> batch, loader->next());
  return *std::move(batch);
}

bool has_column(const TableSchema& schema, const std::string& name) {
  return std::any_of(schema.features().begin(), schema.features().end(),
                     [&](const TableSchema::Column& column) { return column.name == name; });
}

/// The column with the name of an input.
absl::StatusOr<at::Tensor> column_of(const std::string& path, const TableSchema& schema, const Batch& rows,
                                     const ExportedInput& input) {
  int64_t number = 0, category = 0;
  for (const TableSchema::Column& column : schema.features()) {
    if (column.name == input.name) {
      const bool wants_number = at::isFloatingType(input.dtype);
      if (column.is_number != wants_number) {
        return misfit(path, column.name, wants_number ? "has texts, and the model's input is a number" : "has numbers",
                      "", wants_number ? "numbers" : "categories");
      }
      const at::Tensor values =
          column.is_number ? rows["numbers"].select(1, number) : rows["categories"].select(1, category);
      return as_input(path, input, input.shape.size() == 2 ? values.unsqueeze(1) : values);
    }
    ++(column.is_number ? number : category);
  }
  return misfit(path, input.name, "the table has no such column", "", "a column with the name of each input");
}

absl::StatusOr<at::Tensor> target_of(const std::string& path, const TableSchema& schema, const at::Tensor& y,
                                     const std::string& loss) {
  if (loss != "cross_entropy") {
    if (schema.target().is_number || loss == "bce_with_logits") return y.to(at::kFloat);
    return misfit(path, schema.target().name, "has texts, and --loss " + loss + " needs numbers", "", "numbers");
  }
  const bool is_class = !y.is_floating_point() || (y.eq(y.round()).all().item<bool>() && y.ge(0).all().item<bool>());
  if (is_class) return y.to(at::kLong);
  return misfit(path, schema.target().name, "has numbers that are no classes", "", "whole numbers from 0, or texts");
}

}  // namespace

absl::StatusOr<TableSchema> learn_columns(const Table& table, const std::vector<double>& shares,
                                          const std::vector<ExportedInput>& inputs, TableSchemaOptions options) {
  for (const ExportedInput& input : inputs) {
    if (!at::isFloatingType(input.dtype) && table.contains(input.name)) options.categories.push_back(input.name);
  }
  return TableSchema::learn(table, random_split(table.rows(), shares)[0], std::move(options));
}

absl::StatusOr<ModelData> rows_of_table(const Table& table, const TableSchema& schema,
                                        const std::vector<ExportedInput>& inputs, const std::string& loss) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto rows, TableDataset::create(table, schema));
  TRAINKIT_ASSIGN_OR_RETURN(const Batch batch, whole(rows));
  std::vector<std::pair<std::string, at::Tensor>> arrays;
  const bool by_name = inputs.size() != 1 || has_column(schema, inputs.front().name);
  for (const ExportedInput& input : inputs) {
    TRAINKIT_ASSIGN_OR_RETURN(at::Tensor array, by_name ? column_of(table.path(), schema, batch, input)
                                                        : as_input(table.path(), input, schema.inputs(batch)));
    arrays.emplace_back(input.name, std::move(array));
  }
  ModelData data;
  if (table.contains(schema.target().name)) {
    TRAINKIT_ASSIGN_OR_RETURN(at::Tensor y, target_of(table.path(), schema, batch["y"], loss));
    arrays.emplace_back("y", std::move(y));
  }
  data.rows = std::make_shared<TensorDataset>(std::move(arrays));
  data.classes = schema.target().values;
  data.target = schema.target().name;
  if (schema.target().is_number) {
    data.mean = schema.target().mean;
    data.deviation = schema.target().deviation;
  }
  data.notes = rows->describe_unknown();
  return data;
}

}  // namespace trainkit::train
