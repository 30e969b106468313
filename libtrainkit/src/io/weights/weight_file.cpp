#include "trainkit/io/weight_file.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/strict_json.h"
#include "io/weights/safetensors_header.h"
#include "io/weights/torch_dtypes.h"
#include "io/weights/weight_content.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

std::string torch_name(const std::string& safetensors_dtype) {
  const auto* dtype = detail::find_dtype(safetensors_dtype);
  const auto* named = dtype && dtype->scalar_type ? detail::find_torch_dtype(*dtype->scalar_type) : nullptr;
  return named ? std::string(named->name) : safetensors_dtype;
}

constexpr int64_t kMaxIndexBytes = 32 << 20;

Error index_error(const std::string& path, std::string field, std::string problem) {
  return {.exit_code = ExitCode::kWeights,
          .id = "weights.index",
          .where = path,
          .field = std::move(field),
          .problem = std::move(problem)};
}

/// Returns the file name of each tensor, by tensor name.
absl::StatusOr<std::map<std::string, std::string>> read_index(const ReadableFile& index) {
  const std::string& path = index.path();
  if (index.size_bytes() > kMaxIndexBytes) return to_status(index_error(path, {}, "is too long for an index"));
  std::string text(static_cast<size_t>(index.size_bytes()), '\0');
  if (auto status = index.read_at(0, text.data(), text.size()); !status.ok())
    return reclassify(status, ExitCode::kWeights, "weights.file");
  TRAINKIT_ASSIGN_OR_RETURN(const nlohmann::json json, detail::parse_strict_json(text, index_error(path, {}, {})));
  if (!json.contains("weight_map") || !json["weight_map"].is_object() || json["weight_map"].empty())
    return to_status(index_error(path, "weight_map", "is missing, empty or not an object: not an index of weights"));
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!file.is_string()) return to_status(index_error(path, tensor, "has no file name"));
    const auto& name = file.get_ref<const std::string&>();
    const bool plain = !name.empty() && name != "." && name != ".." && name.find_first_of("/\\") == name.npos &&
                       name.find('\0') == name.npos;
    if (!plain) {
      Error error = index_error(path, tensor, "is in a file outside the index's folder");
      error.got = name;
      return to_status(error);
    }
    files.emplace(tensor, name);
  }
  return files;
}

bool is_named_as_torch_file(const std::string& path) {
  return path.ends_with(".pt") || path.ends_with(".pth") || path.ends_with(".bin") || path.ends_with(".ckpt");
}

/// Returns the error for a file that a user expects to be PyTorch's, but whose content is of no known format.
absl::Status not_torch_file(const ReadableFile& file) {
  const std::string hint = detail::content_hint(detail::weight_content(file));
  return to_status({.exit_code = ExitCode::kWeights,
                    .id = "weights.format",
                    .where = file.path(),
                    .problem = file.size_bytes() == 0 ? "is empty" : "is not a PyTorch file",
                    .got = std::to_string(file.size_bytes()) + " bytes",
                    .expected = "a file of torch.save",
                    .hint = hint.empty() ? "the download may be incomplete: fetch the file again" : hint});
}

}  // namespace

WeightFile::WeightFile(std::string path, std::vector<Part> parts) : path_(std::move(path)), parts_(std::move(parts)) {
  for (const Part& part : parts_) {
    if (const auto* torch = std::get_if<TorchFile>(&part)) {
      for (const TorchEntry& e : torch->entries()) entries_.push_back({e.name, e.dtype, e.shape, e.bytes});
      values_.insert(values_.end(), torch->values().begin(), torch->values().end());
    } else {
      const auto& safetensors = std::get<SafetensorsFile>(part);
      for (const SafetensorsEntry& e : safetensors.entries())
        entries_.push_back({e.name, torch_name(e.dtype), e.shape, e.end - e.begin});
      values_.insert(values_.end(), safetensors.metadata().begin(), safetensors.metadata().end());
    }
  }
}

absl::StatusOr<WeightFile::Part> WeightFile::open_part(ReadableFile file) {
  switch (detail::weight_content(file)) {
    case detail::WeightContent::kZip:
    case detail::WeightContent::kPickle:
    case detail::WeightContent::kTar:
      return TorchFile::open(std::move(file));
    default:
      if (is_named_as_torch_file(file.path()) && !detail::looks_like_safetensors(file)) return not_torch_file(file);
      return SafetensorsFile::open(std::move(file));
  }
}

absl::StatusOr<WeightFile> WeightFile::open(const std::string& path, const Fs& fs) {
  auto file = fs.open_file(path);
  if (!file.ok()) return reclassify(file.status(), ExitCode::kWeights, "weights.file");
  if (detail::weight_content(*file) == detail::WeightContent::kIndex) return open_index(*file, fs);
  TRAINKIT_ASSIGN_OR_RETURN(Part part, open_part(std::move(*file)));
  std::vector<Part> parts;
  parts.push_back(std::move(part));
  return WeightFile(path, std::move(parts));
}

absl::StatusOr<WeightFile> WeightFile::open_index(const ReadableFile& index, const Fs& fs) {
  const std::string& path = index.path();
  TRAINKIT_ASSIGN_OR_RETURN(auto file_of, read_index(index));
  std::set<std::string> names;
  for (const auto& [tensor, name] : file_of) names.insert(name);
  std::vector<Part> parts;
  for (const std::string& name : names) {
    auto file = fs.open_file(split_path(path).first + "/" + name);
    if (!file.ok()) return reclassify(file.status(), ExitCode::kWeights, "weights.index");
    TRAINKIT_ASSIGN_OR_RETURN(Part part, open_part(std::move(*file)));
    for (const std::string& tensor : std::visit([](const auto& f) { return f.names(); }, part)) {
      const auto listed = file_of.extract(tensor);
      if (listed && listed.mapped() == name) continue;
      Error error = index_error(path, tensor, "is in another file than the index states, in two files, or not listed");
      error.got = name;
      error.expected = listed ? listed.mapped() : "";
      return to_status(error);
    }
    parts.push_back(std::move(part));
  }
  if (file_of.empty()) return WeightFile(path, std::move(parts));
  return to_status(index_error(path, file_of.begin()->first, "is not in " + file_of.begin()->second));
}

std::string_view WeightFile::format() const {
  const auto* torch = std::get_if<TorchFile>(&parts_.front());
  return !torch ? "safetensors" : torch->is_legacy() ? "PyTorch legacy" : "PyTorch zip";
}

absl::StatusOr<std::string> WeightFile::state_dict_prefix() const {
  const auto* torch = parts_.size() == 1 ? std::get_if<TorchFile>(&parts_.front()) : nullptr;
  return torch ? torch->state_dict_prefix() : std::string();
}

NamedTensorsOr WeightFile::tensors(std::string_view prefix) const {
  const std::string start = prefix.empty() ? "" : std::string(prefix) + ".";
  NamedTensors some;
  for (const Part& part : parts_) {
    if (const auto* torch = std::get_if<TorchFile>(&part)) {
      if (parts_.size() == 1) return torch->tensors(prefix);
      TRAINKIT_ASSIGN_OR_RETURN(NamedTensors all, torch->tensors());  // all, because tensors may share storages
      for (auto& [name, tensor] : all) {
        if (name.starts_with(start)) some.emplace_back(name.substr(start.size()), std::move(tensor));
      }
      continue;
    }
    const auto& safetensors = std::get<SafetensorsFile>(part);
    for (const SafetensorsEntry& entry : safetensors.entries()) {
      if (!entry.name.starts_with(start)) continue;
      TRAINKIT_ASSIGN_OR_RETURN(at::Tensor tensor, safetensors.tensor(entry.name));
      some.emplace_back(entry.name.substr(start.size()), std::move(tensor));
    }
  }
  return some.empty() && !prefix.empty() ? NamedTensorsOr(no_tensor_below(prefix)) : NamedTensorsOr(std::move(some));
}

absl::Status WeightFile::no_tensor_below(std::string_view prefix) const {
  const auto* torch = parts_.size() == 1 ? std::get_if<TorchFile>(&parts_.front()) : nullptr;
  if (torch) return torch->no_tensor_below(prefix);
  return to_status({.exit_code = ExitCode::kWeights,
                    .id = "weights.prefix",
                    .where = path(),
                    .field = std::string(prefix),
                    .problem = "holds no tensor"},
                   absl::StatusCode::kNotFound);
}

}  // namespace trainkit
