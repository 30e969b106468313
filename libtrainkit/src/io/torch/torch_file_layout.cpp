#include "io/torch/torch_file_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <unordered_map>

#include "io/files/zip_reader.h"
#include "io/torch/pickle_names.h"
#include "io/torch/unpickler.h"
#include "io/weights/weight_content.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

/// torch.serialization.MAGIC_NUMBER in LONG1 encoding, and PROTOCOL_VERSION.
constexpr std::string_view kMagic("\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 10);
constexpr int64_t kLegacyVersion = 1001;
/// Versions of the archive that PyTorch 2.11 reads: kMinSupportedFileFormatVersion, kMaxSupportedFileFormatVersion.
constexpr int kMinArchiveVersion = 1, kMaxArchiveVersion = 10;

absl::Status refuse(const ReadableFile& file, std::string id, std::string field, std::string problem,
                    std::string got = {}, std::string expected = {}, std::string hint = {}) {
  return to_status({.exit_code = ExitCode::kWeights,
                    .id = std::move(id),
                    .where = file.path(),
                    .field = std::move(field),
                    .problem = std::move(problem),
                    .got = std::move(got),
                    .expected = std::move(expected),
                    .hint = std::move(hint)});
}

TorchEntry entry_of(const Unpickler& pickle, std::string name, const PickleValue& value) {
  TorchEntry entry{.name = std::move(name), .dtype = {}, .shape = {}, .strides = {}};
  int64_t elements = 1;
  const TorchDtype* dtype = nullptr;
  if (value.kind == PickleValue::Kind::kTensor) {
    const PickledTensor& tensor = pickle.tensors()[value.offset];
    dtype = &torch_dtypes()[tensor.dtype];
    const int64_t* sizes = pickle.dims().data() + tensor.dims;
    entry.shape.assign(sizes, sizes + tensor.rank);
    entry.strides.assign(sizes + tensor.rank, sizes + size_t{2} * tensor.rank);
    for (const int64_t size : entry.shape) elements *= size;
    entry.storage = tensor.storage;
    entry.storage_offset = static_cast<int64_t>(tensor.offset);
  } else {  // a bare storage is listed as a vector
    const PickledView& view = pickle.views()[value.offset];
    dtype = pickle.storages()[view.storage].dtype;
    if (!dtype) dtype = find_torch_dtype("uint8");
    const auto element = static_cast<int64_t>(c10::elementSize(dtype->type));
    elements = static_cast<int64_t>(view.end - view.begin) / element;
    entry.shape = {elements};
    entry.strides = {1};
    entry.storage = view.storage;
    entry.storage_offset = static_cast<int64_t>(view.begin) / element;
  }
  entry.dtype = dtype->name;
  entry.bytes = elements * static_cast<int64_t>(c10::elementSize(dtype->type));
  return entry;
}

/// Copies everything from the pickle to `layout` except the locations of the storages.
absl::Status add_names(const Unpickler& pickle, const PickleValue& root, const std::string& path, TorchLayout& layout) {
  TRAINKIT_ASSIGN_OR_RETURN(PickleNames names, name_values(pickle, root, path));
  for (auto& [name, value] : names.tensors) {
    layout.entries.push_back(entry_of(pickle, std::move(name), value));
    const bool is_tensor = value.kind == PickleValue::Kind::kTensor;
    const PickledTensor* tensor = is_tensor ? &pickle.tensors()[value.offset] : nullptr;
    layout.conjugated_negated.emplace_back(tensor && tensor->conjugated, tensor && tensor->negated);
  }
  layout.values = std::move(names.values);
  layout.containers = std::move(names.containers);
  return absl::OkStatus();
}

// --- zip ---------------------------------------------------------------------------------------------------------

/// Finds the entries of an archive by their names within its single folder.
class Archive {
 public:
  static absl::StatusOr<Archive> open(const ReadableFile& file) {
    const auto read = [&](uint64_t at, void* out, size_t count) {
      const absl::Status status = file.read_at(static_cast<int64_t>(at), out, count);
      return status.ok() ? status : reclassify(status, ExitCode::kWeights, "weights.file");
    };
    TRAINKIT_ASSIGN_OR_RETURN(std::vector<ZipEntry> entries,
                              read_zip_directory({.path = file.path(),
                                                  .size = static_cast<uint64_t>(file.size_bytes()),
                                                  .read = read,
                                                  .exit_code = ExitCode::kWeights,
                                                  .error_id = "weights.zip",
                                                  .writer = "torch.save"}));
    Archive archive(file);
    const std::string folder = entries.empty() ? "" : entries[0].name.substr(0, entries[0].name.find('/') + 1);
    for (ZipEntry& entry : entries) {
      if (folder.empty() || !entry.name.starts_with(folder))
        return refuse(file, "weights.zip", entry.name, "is not in the archive's single folder", "", folder);
      // torch.serialization.set_crc32_options(False) writes 0 for every CRC.
      archive.has_crc_ = archive.has_crc_ || entry.crc != 0;
      std::string name = entry.name.substr(folder.size());
      archive.entries_.emplace(std::move(name), std::move(entry));
    }
    return archive;
  }

  const ZipEntry* find(const std::string& name) const {
    const auto at = entries_.find(name);
    return at == entries_.end() ? nullptr : &at->second;
  }
  bool has_folder(std::string_view prefix) const {
    return std::any_of(entries_.begin(), entries_.end(), [&](const auto& e) { return e.first.starts_with(prefix); });
  }
  bool has_crc() const { return has_crc_; }

  absl::StatusOr<std::string> read(const std::string& name, uint64_t max_bytes) const {
    const ZipEntry* entry = find(name);
    if (!entry) return refuse(file_, "weights.zip", name, "is not in the archive: not a torch.save file");
    if (entry->size > max_bytes) {
      return refuse(file_, "weights.zip", name, "is too long", fmt::format("{} bytes", entry->size),
                    fmt::format("at most {}", max_bytes));
    }
    std::string bytes(entry->size, '\0');
    auto status = file_.read_at(static_cast<int64_t>(entry->offset), bytes.data(), bytes.size());
    if (!status.ok()) return reclassify(status, ExitCode::kWeights, "weights.file");
    if (has_crc_ && crc32(0, bytes.data(), bytes.size()) != entry->crc)
      return refuse(file_, "weights.digest", name, "is damaged: its CRC differs");
    return bytes;
  }

 private:
  explicit Archive(const ReadableFile& file) : file_(file) {}
  const ReadableFile& file_;
  bool has_crc_ = false;
  std::unordered_map<std::string, ZipEntry> entries_;
};

absl::Status check_archive(const ReadableFile& file, const Archive& archive) {
  if (archive.find("constants.pkl") || archive.has_folder("code/")) {
    return refuse(file, "weights.pickle", {}, "is a TorchScript program, which is code", "", "weights alone",
                  "in Python: torch.save(torch.jit.load(path).state_dict(), new_path)");
  }
  TRAINKIT_ASSIGN_OR_RETURN(const std::string text, archive.read("version", 16));
  int version = 0;
  std::from_chars(text.data(), text.data() + text.size(), version);
  if (version < kMinArchiveVersion || version > kMaxArchiveVersion) {
    return refuse(file, "weights.zip", "version", "is of a version that is not known", escape_text(text),
                  fmt::format("{} to {}", kMinArchiveVersion, kMaxArchiveVersion));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> read_byte_order(const ReadableFile& file, const Archive& archive) {
  if (!archive.find("byteorder")) return false;
  TRAINKIT_ASSIGN_OR_RETURN(const std::string order, archive.read("byteorder", 16));
  if (order == "little" || order == "big") return order == "big";
  return refuse(file, "weights.zip", "byteorder", "is unknown", escape_text(order), "little or big");
}

absl::StatusOr<TorchLayout> read_zip(const ReadableFile& file) {
  TRAINKIT_ASSIGN_OR_RETURN(const Archive archive, Archive::open(file));
  TRAINKIT_RETURN_IF_ERROR(check_archive(file, archive));
  TorchLayout layout;
  TRAINKIT_ASSIGN_OR_RETURN(layout.is_big_endian, read_byte_order(file, archive));
  TRAINKIT_ASSIGN_OR_RETURN(std::string bytes, archive.read("data.pkl", kMaxPickleBytes));
  PickleInput input(std::move(bytes), file.path() + "@data.pkl+");
  Unpickler pickle(input);
  TRAINKIT_ASSIGN_OR_RETURN(const PickleValue root, pickle.load());
  if (!input.at_end()) return to_status(input.error(input.position(), "something follows the pickle"));
  TRAINKIT_RETURN_IF_ERROR(add_names(pickle, root, file.path(), layout));
  for (const PickledStorage& storage : pickle.storages()) {
    const std::string name = "data/" + storage.key;
    const ZipEntry* entry = archive.find(name);
    if (!entry) return refuse(file, "weights.zip", name, "is not in the archive, but tensors refer to it");
    if (entry->size != storage.bytes) {
      return refuse(file, "weights.zip", name, "does not have the size that its tensors state",
                    fmt::format("{} bytes", entry->size), fmt::format("{}", storage.bytes));
    }
    if (layout.is_big_endian && !storage.dtype) {
      return refuse(file, "weights.zip", name, "has big-endian values of a dtype that the storage does not tell", "",
                    "little-endian values");
    }
    layout.storages.push_back({.name = name,
                               .offset = static_cast<int64_t>(entry->offset),
                               .bytes = static_cast<int64_t>(entry->size),
                               .crc = archive.has_crc() ? std::optional(entry->crc) : std::nullopt,
                               .dtype = storage.dtype});
  }
  return layout;
}

// --- before PyTorch 1.6 -------------------------------------------------------------------------------------------

absl::Status read_legacy_start(PickleInput& input, Unpickler& pickle) {
  using Kind = PickleValue::Kind;
  TRAINKIT_ASSIGN_OR_RETURN(const PickleValue magic, pickle.load());
  if (magic.kind != Kind::kBigInt || pickle.text(magic) != kMagic)
    return to_status(input.error(0, "is a pickle, but not one of torch.save: its magic number is missing"));
  const uint64_t version_at = input.position();
  TRAINKIT_ASSIGN_OR_RETURN(const PickleValue version, pickle.load());
  if (version.kind != Kind::kInt || version.integer != kLegacyVersion) {
    Error error = input.error(version_at, "is of a version that is not known");
    error.expected = fmt::format("{}", kLegacyVersion);
    return to_status(error);
  }
  // Skips the type sizes and the byte order of the writing machine. PyTorch's writer stores data in little-endian on
  // every machine.
  return pickle.load().status();
}

/// Locates the storages of a legacy file: a list of keys, then the number of elements and the bytes of each storage.
absl::Status place_storages(const ReadableFile& file, PickleInput& input, Unpickler& pickle, TorchLayout& layout) {
  using Kind = PickleValue::Kind;
  const uint64_t keys_at = input.position();
  TRAINKIT_ASSIGN_OR_RETURN(const PickleValue keys, pickle.load());
  if (keys.kind != Kind::kList) return to_status(input.error(keys_at, "the list of storages is missing"));
  std::unordered_map<std::string_view, size_t> index;
  for (const PickledStorage& storage : pickle.storages()) {
    index.emplace(storage.key, layout.storages.size());
    layout.storages.push_back({.name = "storage " + escape_text(storage.key), .offset = -1, .dtype = storage.dtype});
  }
  auto position = static_cast<int64_t>(input.position());
  for (const PickleValue& key : pickle.lists()[keys.offset]) {
    const auto at = key.kind == Kind::kText ? index.find(pickle.text(key)) : index.end();
    if (at == index.end()) return to_status(input.error(keys_at, "a storage that no tensor refers to"));
    StoragePlace& place = layout.storages[at->second];
    if (place.offset >= 0) return refuse(file, "weights.pickle", place.name, "is a duplicate");
    const int64_t left = file.size_bytes() - position - 8;
    int64_t elements = 0;
    if (left < 0) return refuse(file, "weights.pickle", place.name, "is missing: the file is cut short");
    auto status = file.read_at(position, &elements, 8);
    if (!status.ok()) return reclassify(status, ExitCode::kWeights, "weights.file");
    const auto element = static_cast<int64_t>(place.dtype ? c10::elementSize(place.dtype->type) : 1);
    const auto bytes = static_cast<int64_t>(pickle.storages()[at->second].bytes);
    if (elements < 0 || elements != bytes / element) {
      return refuse(file, "weights.pickle", place.name, "does not have the size that its tensors state",
                    fmt::format("{} elements", elements), fmt::format("{}", bytes / element));
    }
    if (bytes > left) {
      return refuse(file, "weights.pickle", place.name, "is cut short", fmt::format("{} bytes left", left),
                    fmt::format("{}", bytes));
    }
    place.offset = position + 8;
    place.bytes = bytes;
    position = place.offset + bytes;
  }
  for (const StoragePlace& place : layout.storages) {
    if (place.offset < 0) return refuse(file, "weights.pickle", place.name, "is not in the file");
  }
  if (position != file.size_bytes()) {
    return refuse(file, "weights.pickle", {}, "has bytes after the last storage",
                  fmt::format("{} bytes", file.size_bytes() - position));
  }
  return absl::OkStatus();
}

absl::StatusOr<TorchLayout> read_legacy(const ReadableFile& file) {
  TorchLayout layout{.is_legacy = true};
  PickleInput input(file);
  Unpickler pickle(input);
  TRAINKIT_RETURN_IF_ERROR(read_legacy_start(input, pickle));
  TRAINKIT_ASSIGN_OR_RETURN(const PickleValue root, pickle.load());
  TRAINKIT_RETURN_IF_ERROR(place_storages(file, input, pickle, layout));
  TRAINKIT_RETURN_IF_ERROR(add_names(pickle, root, file.path(), layout));
  return layout;
}

/// Limits the memory of tensors that are computed from a storage instead of being views of it. Strides of 0 could give
/// them any size, so together they may have at most twice the size of the file.
absl::Status check_copies(const ReadableFile& file, const TorchLayout& layout) {
  int64_t left = 2 * std::min(file.size_bytes(), std::numeric_limits<int64_t>::max() / 2);
  for (size_t i = 0; i < layout.entries.size(); ++i) {
    const TorchEntry& entry = layout.entries[i];
    if (!layout.is_computed(i)) continue;
    if (entry.bytes > left)
      return refuse(file, "weights.pickle", entry.name, "needs more memory than twice the file, by strides of 0");
    left -= entry.bytes;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TorchLayout> read_torch_layout(const ReadableFile& file) {
  const WeightContent content = weight_content(file);
  if (content == WeightContent::kZip || content == WeightContent::kPickle) {
    TRAINKIT_ASSIGN_OR_RETURN(TorchLayout layout, content == WeightContent::kZip ? read_zip(file) : read_legacy(file));
    TRAINKIT_RETURN_IF_ERROR(check_copies(file, layout));
    return layout;
  }
  return refuse(file, "weights.pickle", {}, "is not a torch.save file", "", "a zip archive or a pickle",
                content_hint(content));
}

}  // namespace trainkit::detail
