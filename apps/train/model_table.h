#pragma once
/// Rows of a table as the inputs of a model.

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "train/model_data.h"
#include "trainkit/data/table_dataset.h"
#include "trainkit/io/table.h"

namespace trainkit::train {

/// Learns the columns of `table` from the first part of random_split(rows, shares). Columns that integer inputs of the
/// model name are categories. Errors, exit code 4: those of TableSchema::learn.
absl::StatusOr<TableSchema> learn_columns(const Table& table, const std::vector<double>& shares,
                                          const std::vector<ExportedInput>& inputs, TableSchemaOptions options);

/// Reads the rows of `table`. If every input of the model has the name of a column, it gets that column: a number
/// standardised by the training rows, or the number of a category, from 1 in ascending order, 0 for unknown ones. Else
/// the single input gets all columns, as TableSchema::inputs() puts them. "y" is the target, if the table has it:
/// float32, or int64 for classes, which are whole numbers or, by name, texts in ascending order.
///
/// Errors, exit code 4: those of TableDataset::create; data.arrays for columns that do not fit an input.
absl::StatusOr<ModelData> rows_of_table(const Table& table, const TableSchema& schema,
                                        const std::vector<ExportedInput>& inputs, const std::string& loss);

}  // namespace trainkit::train
