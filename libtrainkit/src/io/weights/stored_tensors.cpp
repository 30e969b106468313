#include "io/weights/stored_tensors.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "io/weights/safetensors_header.h"
#include "io/weights/torch_dtypes.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

std::string start_of(std::string_view prefix) { return prefix.empty() ? "" : std::string(prefix) + "."; }

}  // namespace

absl::StatusOr<at::Tensor> StoredTensors::add(Place place, const std::vector<int64_t>& shape, at::ScalarType type) {
  try {
    place.placeholder = at::empty(shape, at::TensorOptions().dtype(type).device(at::kMeta));
  } catch (...) {
    return status_from_current_exception();
  }
  at::Tensor placeholder = place.placeholder;
  places_.emplace(placeholder.unsafeGetTensorImpl(), std::move(place));
  return placeholder;
}

absl::Status StoredTensors::add_all(const std::shared_ptr<const SafetensorsFile>& file, const std::string& start,
                                    NamedTensors& all) {
  for (size_t i = 0; i < file->entries().size(); ++i) {
    const SafetensorsEntry& entry = file->entries()[i];
    if (!entry.name.starts_with(start)) continue;
    const auto type = find_dtype(entry.dtype)->scalar_type;
    auto tensor = type ? add({.safetensors = file, .entry = i}, entry.shape, *type) : absl::UnimplementedError("");
    if (!tensor.ok()) tensor = file->read(entry);  // gives the error
    TRAINKIT_RETURN_IF_ERROR(tensor.status());
    all.emplace_back(entry.name.substr(start.size()), *std::move(tensor));
  }
  return absl::OkStatus();
}

absl::Status StoredTensors::add_all(const std::shared_ptr<const TorchFile>& file, const std::string& start,
                                    NamedTensors& all) {
  for (size_t i = 0; i < file->entries().size(); ++i) {
    const TorchEntry& entry = file->entries()[i];
    if (!entry.name.starts_with(start)) continue;
    auto tensor = add({.torch = file, .entry = i}, entry.shape, find_torch_dtype(entry.dtype)->type);
    if (!tensor.ok()) return annotate(tensor.status(), file->path() + ": " + entry.name);
    all.emplace_back(entry.name.substr(start.size()), *std::move(tensor));
  }
  return absl::OkStatus();
}

absl::StatusOr<NamedTensors> StoredTensors::list(const WeightFile& file, std::string_view prefix) {
  NamedTensors all;
  for (const WeightFile::Part& part : file.parts_) {
    TRAINKIT_RETURN_IF_ERROR(std::visit(
        [&](const auto& some) {
          return add_all(std::make_shared<std::decay_t<decltype(some)>>(some), start_of(prefix), all);
        },
        part));
  }
  if (all.empty() && !prefix.empty()) return file.no_tensor_below(prefix);
  return all;
}

absl::StatusOr<NamedTensors> StoredTensors::list(const SafetensorsFile& file) {
  NamedTensors all;
  TRAINKIT_RETURN_IF_ERROR(add_all(std::make_shared<SafetensorsFile>(file), "", all));
  return all;
}

const StoredTensors::Place* StoredTensors::place_of(const at::Tensor& tensor) const {
  const auto at = places_.find(tensor.unsafeGetTensorImpl());
  return at == places_.end() ? nullptr : &at->second;
}

absl::Status StoredTensors::verify(const NamedTensors& tensors) {
  for (const auto& named : tensors) {
    const Place* place = place_of(named.second);
    if (!place || !place->torch) continue;
    const int64_t storage = place->torch->entries()[place->entry].storage;
    if (!verified_.emplace(place->torch.get(), storage).second) continue;
    if (!buffer_.defined()) buffer_ = at::empty({kPieceBytes}, at::kByte);
    TRAINKIT_RETURN_IF_ERROR(place->torch->verify_storage(storage, buffer_));
  }
  return absl::OkStatus();
}

/// Reads consecutive values of a tensor whose values are consecutive in the file.
absl::Status StoredTensors::read_into(const Place& place, int64_t first, const at::Tensor& values) const {
  void* data = values.mutable_data_ptr();
  const size_t bytes = values.nbytes();
  const auto element = static_cast<int64_t>(values.element_size());
  if (place.torch) return place.torch->read_values(place.torch->entries()[place.entry], first * element, data, bytes);
  return place.safetensors->read_bytes(place.safetensors->entries()[place.entry], first * element, data, bytes);
}

absl::Status StoredTensors::for_each_piece(const at::Tensor& tensor, const UsePiece& use) {
  const int64_t most = kPieceBytes / static_cast<int64_t>(tensor.element_size()), count = tensor.numel();
  const Place* place = place_of(tensor);
  at::Tensor values;  // all of them, unless they are read in pieces
  if (!place || (place->torch && !place->torch->is_plain(place->entry))) {
    TRAINKIT_ASSIGN_OR_RETURN(values, read(tensor));
    values = values.contiguous().view(-1);
  }
  if (!values.defined() && count > 0 && !buffer_.defined()) buffer_ = at::empty({kPieceBytes}, at::kByte);
  for (int64_t first = 0; first < count; first += most) {
    const int64_t some = std::min(most, count - first);
    if (values.defined()) {
      TRAINKIT_RETURN_IF_ERROR(use(values.narrow(0, first, some), first));
      continue;
    }
    const at::Tensor piece = at::from_blob(buffer_.mutable_data_ptr(), {some}, tensor.scalar_type());
    TRAINKIT_RETURN_IF_ERROR(read_into(*place, first, piece));
    TRAINKIT_RETURN_IF_ERROR(use(piece, first));
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> StoredTensors::read(const at::Tensor& tensor) {
  const Place* place = place_of(tensor);
  if (!place) return tensor;
  if (place->safetensors) return place->safetensors->read(place->safetensors->entries()[place->entry]);
  const TorchEntry& entry = place->torch->entries()[place->entry];
  const std::pair<const void*, int64_t> key(place->torch.get(), entry.storage);
  auto at = storages_.find(key);
  if (at == storages_.end()) {
    if (!keeps_storages_) storages_.clear();
    TRAINKIT_ASSIGN_OR_RETURN(at::Tensor storage, place->torch->read_storage(entry.storage));
    at = storages_.emplace(key, std::move(storage)).first;
  }
  return place->torch->make_tensor(entry, at->second);
}

absl::Status StoredTensors::read_all(NamedTensors& tensors) {
  keeps_storages_ = true;
  absl::Status status;
  for (auto& [name, tensor] : tensors) {
    auto values = read(tensor);
    status.Update(values.status());
    if (!status.ok()) break;
    tensor = *std::move(values);
  }
  keeps_storages_ = false;
  storages_.clear();
  return status;
}

absl::Status StoredTensors::copy(const at::Tensor& tensor, const at::Tensor& target) {
  if (!target.is_contiguous()) {
    TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor values, read(tensor));
    target.copy_(values);
    return absl::OkStatus();
  }
  const at::Tensor flat = target.view(-1);
  const Place* place = place_of(tensor);
  const bool is_plain = place && (place->safetensors || place->torch->is_plain(place->entry));
  if (is_plain && target.is_cpu() && target.scalar_type() == tensor.scalar_type()) {
    return flat.numel() == 0 ? absl::OkStatus() : read_into(*place, 0, flat);
  }
  return for_each_piece(tensor, [&](const at::Tensor& piece, int64_t first) {
    flat.narrow(0, first, piece.numel()).copy_(piece);
    return absl::OkStatus();
  });
}

absl::Status StoredTensors::copy_all(const NamedTensors& source, const NamedTensors& target, const std::string& where) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto sources, match_named_tensors(source, target, where));
  TRAINKIT_RETURN_IF_ERROR(verify(source));
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < target.size(); ++i) TRAINKIT_RETURN_IF_ERROR(copy(*sources[i], target[i].second));
  storages_.clear();
  return absl::OkStatus();
}

}  // namespace trainkit::detail
