#include "trainkit/io/weight_file.h"

#include "io/safetensors_header.h"
#include "io/torch_dtypes.h"
#include "io/weight_content.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

std::string torch_name(const std::string& safetensors_dtype) {
  const auto* dtype = detail::find_dtype(safetensors_dtype);
  const auto* named = dtype && dtype->scalar_type ? detail::find_torch_dtype(*dtype->scalar_type) : nullptr;
  return named ? std::string(named->name) : safetensors_dtype;
}

}  // namespace

WeightFile::WeightFile(std::variant<SafetensorsFile, TorchFile> file) : file_(std::move(file)) {
  if (const auto* torch = std::get_if<TorchFile>(&file_)) {
    for (const TorchEntry& e : torch->entries()) entries_.push_back({e.name, e.dtype, e.shape, e.bytes});
    values_ = torch->values();
    return;
  }
  const auto& safetensors = std::get<SafetensorsFile>(file_);
  for (const SafetensorsEntry& e : safetensors.entries())
    entries_.push_back({e.name, torch_name(e.dtype), e.shape, e.end - e.begin});
  values_.assign(safetensors.metadata().begin(), safetensors.metadata().end());
}

absl::StatusOr<WeightFile> WeightFile::open(const std::string& path, const Fs& fs) {
  auto file = fs.open_file(path);
  if (!file.ok()) return reclassify(file.status(), ExitCode::kWeights, "weights.file");
  switch (detail::weight_content(*file)) {
    case detail::WeightContent::kZip:
    case detail::WeightContent::kPickle:
    case detail::WeightContent::kTar: {
      TRAINKIT_ASSIGN_OR_RETURN(TorchFile torch, TorchFile::open(std::move(*file)));
      return WeightFile(std::move(torch));
    }
    default: {
      TRAINKIT_ASSIGN_OR_RETURN(SafetensorsFile safetensors, SafetensorsFile::open(std::move(*file)));
      return WeightFile(std::move(safetensors));
    }
  }
}

std::string_view WeightFile::format() const {
  const auto* torch = std::get_if<TorchFile>(&file_);
  return !torch ? "safetensors" : torch->is_legacy() ? "PyTorch legacy" : "PyTorch zip";
}

const std::string& WeightFile::path() const {
  return std::visit([](const auto& file) -> const std::string& { return file.path(); }, file_);
}

absl::StatusOr<std::string> WeightFile::state_dict_prefix() const {
  const auto* torch = std::get_if<TorchFile>(&file_);
  return torch ? torch->state_dict_prefix() : std::string();
}

absl::StatusOr<NamedTensors> WeightFile::tensors(std::string_view prefix) const {
  if (const auto* torch = std::get_if<TorchFile>(&file_)) return torch->tensors(prefix);
  const auto& safetensors = std::get<SafetensorsFile>(file_);
  if (prefix.empty()) return safetensors.tensors();
  const std::string start = std::string(prefix) + ".";
  NamedTensors some;
  for (const SafetensorsEntry& entry : safetensors.entries()) {
    if (!entry.name.starts_with(start)) continue;
    TRAINKIT_ASSIGN_OR_RETURN(at::Tensor tensor, safetensors.tensor(entry.name));
    some.emplace_back(entry.name.substr(start.size()), std::move(tensor));
  }
  if (!some.empty()) return some;
  return to_status({.exit_code = ExitCode::kWeights,
                    .id = "weights.prefix",
                    .where = path(),
                    .field = std::string(prefix),
                    .problem = "holds no tensor"},
                   absl::StatusCode::kNotFound);
}

}  // namespace trainkit
