#pragma once
/// The data of trainkit-train: fields with the names of the model's inputs, and "y".

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "trainkit/data/dataset.h"
#include "trainkit/nn/exported_model.h"

namespace trainkit::train {

/// Rows with a field for each input of the model, and "y" unless they are to predict.
struct ModelData {
  std::shared_ptr<const Dataset> rows;
  /// Names of the classes of a folder per class, or of a table; else empty.
  std::vector<std::string> classes = {};
  /// Of a table: name, mean and standard deviation of a target that is a number, and lines about unknown values.
  std::string target = "y";
  double mean = 0, deviation = 1;
  std::vector<std::string> notes = {};
};

/// Opens `path`: a folder of .npy files or a safetensors file whose arrays have the names of the inputs and "y", each
/// with a row per sample; or a folder per class of .npy files, for models with one input. The rows are converted to the
/// dtypes of the inputs.
///
/// Errors, exit code 4: those of the readers; data.arrays names an array that is missing, or whose shape does not fit.
absl::StatusOr<ModelData> open_data(const std::string& path, const std::vector<ExportedInput>& inputs, bool needs_y);

/// Returns an array with the dtype of an input of the model. Error data.arrays if its shape does not fit.
absl::StatusOr<at::Tensor> as_input(const std::string& path, const ExportedInput& input, const at::Tensor& array);
/// The error data.arrays.
absl::Status misfit(const std::string& path, const std::string& name, std::string problem, std::string got,
                    std::string expected);

}  // namespace trainkit::train
