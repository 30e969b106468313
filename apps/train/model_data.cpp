#include "train/model_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "trainkit/arrays/array_file.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/status.h"
#include "trainkit/data/adapters.h"
#include "trainkit/data/array_folder.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/io/safetensors.h"

namespace trainkit::train {
namespace {

namespace stdfs = std::filesystem;

constexpr char kTarget[] = "y";

/// The targets in the dtypes that losses take.
at::Tensor as_target(const at::Tensor& array) { return array.to(array.is_floating_point() ? at::kFloat : at::kLong); }

absl::StatusOr<at::Tensor> read_array(const std::string& path, const std::string& name) {
  if (!stdfs::is_directory(path)) {
    TRAINKIT_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(path));
    return file.tensor(name);
  }
  const std::string array = path + "/" + name + ".npy";
  if (!stdfs::exists(array)) return misfit(path, name, "the folder has no such array", "", name + ".npy");
  return read_npy(array);
}

/// Whether the folder has a folder per class.
bool has_classes(const std::string& path) {
  std::error_code ignored;
  for (const auto& entry : stdfs::directory_iterator(path, ignored)) {
    if (entry.is_directory() && !entry.path().filename().string().starts_with('.')) return true;
  }
  return false;
}

}  // namespace

absl::Status misfit(const std::string& path, const std::string& name, std::string problem, std::string got,
                    std::string expected) {
  return data_error("data.arrays", {.file = path, .field = name}, std::move(problem), std::move(got),
                    std::move(expected));
}

absl::StatusOr<at::Tensor> as_input(const std::string& path, const ExportedInput& input, const at::Tensor& array) {
  bool fits = array.dim() == std::ssize(input.shape);
  for (size_t d = 1; fits && d < input.shape.size(); ++d) {
    fits = input.shape[d] < 0 || input.shape[d] == array.size(static_cast<int64_t>(d));
  }
  if (!fits) {
    return misfit(path, input.name, "does not have the shape of the model's input",
                  fmt::format("({})", fmt::join(array.sizes(), ", ")), to_string(input));
  }
  return array.to(input.dtype);
}

absl::StatusOr<ModelData> open_data(const std::string& path, const std::vector<ExportedInput>& inputs, bool needs_y) {
  const bool has_array = !inputs.empty() && stdfs::exists(path + "/" + inputs.front().name + ".npy");
  if (inputs.size() == 1 && !has_array && stdfs::is_directory(path) && has_classes(path)) {
    TRAINKIT_ASSIGN_OR_RETURN(const auto folder, ArrayFolder::open(path));
    const ExportedInput& input = inputs.front();
    const FieldSpec& x = folder->fields().front();
    if (x.dtype != input.dtype || std::ssize(x.shape) + 1 != std::ssize(input.shape)) {
      return misfit(path, input.name, "arrays differ from the model's input",
                    fmt::format("({}) {}", fmt::join(x.shape, ", "), c10::toString(x.dtype)),
                    fmt::format("{} {}", to_string(input), c10::toString(input.dtype)));
    }
    return ModelData{folder, folder->classes()};
  }
  std::vector<std::pair<std::string, at::Tensor>> arrays;
  for (const ExportedInput& input : inputs) {
    TRAINKIT_ASSIGN_OR_RETURN(at::Tensor array, read_array(path, input.name));
    TRAINKIT_ASSIGN_OR_RETURN(array, as_input(path, input, array));
    arrays.emplace_back(input.name, std::move(array));
  }
  if (needs_y) {
    TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor target, read_array(path, kTarget));
    arrays.emplace_back(kTarget, as_target(target));
  }
  for (const auto& [name, array] : arrays) {
    if (array.dim() > 0 && array.size(0) == arrays.front().second.size(0)) continue;
    return misfit(path, name, "has another number of rows than " + arrays.front().first,
                  array.dim() > 0 ? std::to_string(array.size(0)) : "none",
                  std::to_string(arrays.front().second.size(0)));
  }
  return ModelData{std::make_shared<TensorDataset>(std::move(arrays))};
}

}  // namespace trainkit::train
