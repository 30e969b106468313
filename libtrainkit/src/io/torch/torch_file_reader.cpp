#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <numeric>
#include <unordered_map>

#include "io/files/zip_reader.h"
#include "io/torch/torch_file_layout.h"
#include "io/weights/model_weights.h"
#include "trainkit/core/status.h"
#include "trainkit/io/weight_file.h"

namespace trainkit {

static_assert(std::endian::native == std::endian::little, "numbers of PyTorch's files are read without conversion");

struct TorchFile::Contents {
  ReadableFile file;
  detail::TorchLayout layout;
  std::vector<uint32_t> by_name;  // indices into layout.entries, sorted by name
};

namespace {

Error torch_error(const std::string& path, std::string id, std::string field, std::string problem) {
  return {.exit_code = ExitCode::kWeights,
          .id = std::move(id),
          .where = path,
          .field = std::move(field),
          .problem = std::move(problem)};
}

void swap_bytes(char* bytes, size_t count, size_t element) {
  for (size_t i = 0; i + element <= count; i += element) std::reverse(bytes + i, bytes + i + element);
}

/// Converts values of a storage to this machine's representation.
void convert(char* bytes, size_t count, const detail::TorchDtype* dtype, bool is_big_endian) {
  if (!dtype) return;
  // A complex number consists of two numbers, swapped separately.
  const size_t element = c10::elementSize(dtype->type) / (c10::isComplexType(dtype->type) ? 2 : 1);
  if (is_big_endian) swap_bytes(bytes, count, element);
  // A bool with a byte other than 0 and 1 would be undefined behaviour.
  if (dtype->type == at::kBool) std::transform(bytes, bytes + count, bytes, [](char b) { return b != 0; });
}

absl::Status check_crc(const std::string& path, const detail::StoragePlace& place, uint32_t crc) {
  if (!place.crc || crc == *place.crc) return absl::OkStatus();
  Error error = torch_error(path, "weights.digest", place.name, "is damaged: its CRC differs");
  error.got = fmt::format("{:08x}", crc);
  error.expected = fmt::format("{:08x}", *place.crc);
  return to_status(error, absl::StatusCode::kDataLoss);
}

}  // namespace

absl::StatusOr<TorchFile> TorchFile::open(const std::string& path, const Fs& fs) {
  auto file = fs.open_file(path);
  if (!file.ok()) return reclassify(file.status(), ExitCode::kWeights, "weights.file");
  return open(std::move(*file));
}

absl::StatusOr<TorchFile> TorchFile::open(ReadableFile file) {
  TRAINKIT_ASSIGN_OR_RETURN(detail::TorchLayout layout, detail::read_torch_layout(file));
  auto contents = std::make_shared<Contents>(Contents{std::move(file), std::move(layout), {}});
  const auto& entries = contents->layout.entries;
  contents->by_name.resize(entries.size());
  std::iota(contents->by_name.begin(), contents->by_name.end(), 0u);
  std::sort(contents->by_name.begin(), contents->by_name.end(),
            [&](uint32_t a, uint32_t b) { return entries[a].name < entries[b].name; });
  return TorchFile(std::move(contents));
}

const std::vector<TorchEntry>& TorchFile::entries() const { return contents_->layout.entries; }
bool TorchFile::contains(std::string_view name) const { return find(name) != nullptr; }
bool TorchFile::is_legacy() const { return contents_->layout.is_legacy; }
const std::string& TorchFile::path() const { return contents_->file.path(); }
const std::vector<std::pair<std::string, std::string>>& TorchFile::values() const { return contents_->layout.values; }

std::vector<std::string> TorchFile::names() const {
  std::vector<std::string> names;
  for (const TorchEntry& entry : entries()) names.push_back(entry.name);
  return names;
}

const TorchEntry* TorchFile::find(std::string_view name) const {
  const auto& by_name = contents_->by_name;
  const auto at = std::lower_bound(by_name.begin(), by_name.end(), name,
                                   [&](uint32_t i, std::string_view wanted) { return entries()[i].name < wanted; });
  return at != by_name.end() && entries()[*at].name == name ? &entries()[*at] : nullptr;
}

absl::StatusOr<std::string> TorchFile::state_dict_prefix() const {
  const std::vector<std::string>& containers = contents_->layout.containers;
  const auto has = [&](std::string_view name) {
    return std::find(containers.begin(), containers.end(), name) != containers.end();
  };
  if (containers.empty()) {
    return to_status(torch_error(path(), "weights.empty", {}, "holds no tensor"), absl::StatusCode::kNotFound);
  }
  if (containers.size() == 1) return containers[0];
  // A checkpoint may have tensors next to the weights: a score, the state of a generator.
  for (const std::string_view name : detail::kWeightsNames) {
    if (has(name)) return std::string(name);
  }
  if (has("")) return "";
  const auto is_other = [](const std::string& name) { return detail::is_training_name(name); };
  if (std::count_if(containers.begin(), containers.end(), std::not_fn(is_other)) == 1)
    return *std::find_if_not(containers.begin(), containers.end(), is_other);
  Error error = torch_error(path(), "weights.prefix", {}, "holds several sets of tensors");
  const size_t shown = std::min<size_t>(containers.size(), 8);
  error.got = fmt::format("{}{}", fmt::join(containers.begin(), containers.begin() + static_cast<int64_t>(shown), ", "),
                          shown < containers.size() ? ", ..." : "");
  error.expected = "the name of one of them";
  return to_status(error, absl::StatusCode::kInvalidArgument);
}

absl::StatusOr<at::Tensor> TorchFile::read_storage(int64_t storage) const {
  const detail::StoragePlace& place = contents_->layout.storages[static_cast<size_t>(storage)];
  at::Tensor bytes;
  try {
    bytes = at::empty({place.bytes}, at::kByte);
  } catch (...) {
    return annotate(status_from_current_exception(), path() + ": " + place.name);
  }
  const auto size = static_cast<size_t>(place.bytes);
  if (auto status = contents_->file.read_at(place.offset, bytes.mutable_data_ptr(), size); !status.ok())
    return reclassify(status, ExitCode::kWeights, "weights.file");
  TRAINKIT_RETURN_IF_ERROR(check_crc(path(), place, place.crc ? detail::crc32(0, bytes.const_data_ptr(), size) : 0));
  convert(static_cast<char*>(bytes.mutable_data_ptr()), size, place.dtype, contents_->layout.is_big_endian);
  return bytes;
}

/// Verifies the CRC of a storage, read in pieces of the size of `buffer`.
absl::Status TorchFile::verify_storage(int64_t storage, const at::Tensor& buffer) const {
  const detail::StoragePlace& place = contents_->layout.storages[static_cast<size_t>(storage)];
  if (!place.crc) return absl::OkStatus();
  uint32_t crc = 0;
  for (int64_t at = 0; at < place.bytes; at += buffer.numel()) {
    const auto size = static_cast<size_t>(std::min(buffer.numel(), place.bytes - at));
    const absl::Status status = contents_->file.read_at(place.offset + at, buffer.mutable_data_ptr(), size);
    if (!status.ok()) return reclassify(status, ExitCode::kWeights, "weights.file");
    crc = detail::crc32(crc, buffer.const_data_ptr(), size);
  }
  return check_crc(path(), place, crc);
}

/// Whether the values of a tensor are consecutive in the file, in row-major order.
bool TorchFile::is_plain(size_t index) const {
  // The bytes of big-endian values are swapped by elements of the storage, which a piece may divide.
  if (contents_->layout.is_computed(index) || contents_->layout.is_big_endian) return false;
  const TorchEntry& entry = entries()[index];
  int64_t stride = 1;
  for (size_t i = entry.shape.size(); i-- > 0;) {
    if (entry.shape[i] != 1 && entry.strides[i] != stride) return entry.bytes == 0;
    stride *= std::max<int64_t>(entry.shape[i], 1);
  }
  return true;
}

/// Reads bytes of a plain tensor from `offset` within it, without verifying the CRC.
absl::Status TorchFile::read_values(const TorchEntry& entry, int64_t offset, void* data, size_t bytes) const {
  const detail::StoragePlace& place = contents_->layout.storages[static_cast<size_t>(entry.storage)];
  const auto element = static_cast<int64_t>(c10::elementSize(detail::find_torch_dtype(entry.dtype)->type));
  const int64_t at = place.offset + entry.storage_offset * element + offset;
  if (auto status = contents_->file.read_at(at, data, bytes); !status.ok())
    return reclassify(status, ExitCode::kWeights, "weights.file");
  convert(static_cast<char*>(data), bytes, place.dtype, contents_->layout.is_big_endian);
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> TorchFile::make_tensor(const TorchEntry& entry, const at::Tensor& storage) const {
  const at::ScalarType type = detail::find_torch_dtype(entry.dtype)->type;
  const auto index = static_cast<size_t>(&entry - entries().data());
  const bool unsure = contents_->layout.is_unsure_bool(index);
  const auto [conjugated, negated] = contents_->layout.conjugated_negated[index];
  try {
    if (entry.bytes == 0) return at::empty(entry.shape, type);
    at::Tensor tensor = at::empty({0}, unsure ? at::kByte : type);
    tensor.set_(storage.storage(), entry.storage_offset, entry.shape, entry.strides);
    if (unsure) tensor = tensor.ne(0);
    if (conjugated) tensor = tensor.conj().resolve_conj();
    if (negated) tensor = tensor.neg();
    return tensor;
  } catch (...) {
    return annotate(status_from_current_exception(), path() + ": " + entry.name);
  }
}

absl::StatusOr<at::Tensor> TorchFile::tensor(std::string_view name) const {
  if (const TorchEntry* entry = find(name)) {
    TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor storage, read_storage(entry->storage));
    return make_tensor(*entry, storage);
  }
  Error error = torch_error(path(), "weights.missing", std::string(name), "is not in the file");
  if (const std::string near = nearest_name(name, names()); !near.empty()) error.hint = "did you mean '" + near + "'?";
  return to_status(error, absl::StatusCode::kNotFound);
}

NamedTensorsOr TorchFile::tensors(std::string_view prefix) const {
  const std::string start = prefix.empty() ? "" : std::string(prefix) + ".";
  NamedTensors all;
  std::unordered_map<int64_t, at::Tensor> storages;
  for (const TorchEntry& entry : entries()) {
    if (!entry.name.starts_with(start)) continue;
    auto at = storages.find(entry.storage);
    if (at == storages.end()) {
      TRAINKIT_ASSIGN_OR_RETURN(at::Tensor storage, read_storage(entry.storage));
      at = storages.emplace(entry.storage, std::move(storage)).first;
    }
    TRAINKIT_ASSIGN_OR_RETURN(at::Tensor tensor, make_tensor(entry, at->second));
    all.emplace_back(entry.name.substr(start.size()), std::move(tensor));
  }
  if (all.empty() && !prefix.empty()) return no_tensor_below(prefix);
  return all;
}

absl::Status TorchFile::no_tensor_below(std::string_view prefix) const {
  Error error = torch_error(path(), "weights.prefix", std::string(prefix), "holds no tensor");
  if (const std::string near = nearest_name(prefix, contents_->layout.containers); !near.empty())
    error.hint = "did you mean '" + near + "'?";
  return to_status(error, absl::StatusCode::kNotFound);
}

}  // namespace trainkit
