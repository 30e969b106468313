// Reads MAT files of version 7.3: HDF5 after a block of 512 bytes. Checks the structure before HDF5 reads data from it.
// Source: "HDF5 File Format Specification", version 3.0, The HDF Group.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "core/array_bytes.h"
#include "io/hdf5_handle.h"
#include "io/hdf5_mapped.h"
#include "io/inflate.h"
#include "io/mat_source.h"
#include "io/matio_bridge.h"
#include "io/message.h"
#include "io/run_forked.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr size_t kUserBlock = 512;
constexpr int64_t kMostVariables73 = 10'000, kMostChunks = 1'000'000, kMostChunkBytes = int64_t{256} << 20;
constexpr hsize_t kMostPlainChunks = 4096;  // without a filter; HDF5 searches the index again for each chunk
constexpr int kMostDimensions73 = 32;

absl::Status damaged(const std::string& problem) { return absl::DataLossError(problem); }
absl::Status refused(const std::string& problem) { return absl::InvalidArgumentError(problem); }

// Note [Checking HDF5 chunks before reading]
//
// HDF5 1.10 trusts the sizes in a file. check_dataset verifies a dataset before H5Dread:
//   Filters: only shuffle and deflate, which MATLAB uses, with deflate last.
//   Compressed chunks: each is decompressed here first and must give exactly the size of a chunk. HDF5 itself grows
//   its buffer until the stream ends, without a limit.
//   Chunks without a filter: HDF5 allocates by the chunk index but copies by the dataset. check_index compares both,
//   because H5Dget_chunk_storage_size does not read the index.
//   Other layouts: the stored size must equal the size of the array.
// Everything runs in a forked copy, see Note [Reading in a forked copy]: HDF5 1.10 uses freed memory when it closes
// some damaged files.

/// Checks HDF5's superblock, including the end of file stored in it.
absl::Status check_superblock(std::string_view text) {
  constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
  if (text.size() < kUserBlock + 64) {
    return damaged(fmt::format("{} bytes, too few for the HDF5 part (truncated?)", text.size()));
  }
  const std::string_view block = text.substr(kUserBlock);
  if (!block.starts_with(kSignature)) return refused("version 7.3, but no HDF5 at byte 512");
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(block[at]); };
  const auto address = [&](size_t at) {
    uint64_t value = 0;
    for (size_t i = 0; i < 8; ++i) value |= uint64_t{byte(at + i)} << (8 * i);
    return value;
  };
  const unsigned version = byte(8);
  if (version > 3) return refused(fmt::format("HDF5 superblock of version {}, 0 to 3 are known", version));
  const bool old = version < 2;
  if (byte(old ? 13 : 9) != 8 || byte(old ? 14 : 10) != 8) return refused("HDF5 addresses are not of 8 bytes");
  const size_t first = version == 0 ? 24 : version == 1 ? 28 : 12;
  const uint64_t base = address(first), end = address(first + 16);
  constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
  if (base != kUserBlock) return refused(fmt::format("the superblock gives a base address of {}, not 512", base));
  if (old && address(first + 24) != kNone)
    return refused("the HDF5 part requires a driver, which may refer to other files");
  if (end == kNone || end > text.size()) {
    return damaged(
        fmt::format("the superblock gives an end at byte {}, the file has {} (truncated?)", end, text.size()));
  }
  return absl::OkStatus();
}

/// Returns a fixed-length string attribute of at most 64 bytes. Empty if there is none.
std::string attribute(hid_t object, const char* name) {
  if (H5Aexists(object, name) <= 0) return {};
  const Hdf5Handle found(H5Aopen(object, name, H5P_DEFAULT));
  const Hdf5Handle type(found ? H5Aget_type(found) : -1), space(found ? H5Aget_space(found) : -1);
  if (!type || !space || H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) > 0) return {};
  const size_t size = H5Tget_size(type);
  if (size == 0 || size > 64 || H5Sget_simple_extent_npoints(space) != 1) return {};
  std::string text(size, '\0');
  if (H5Aread(found, type, text.data()) < 0) return {};
  return text.substr(0, text.find('\0'));
}

/// Returns the number of a MATLAB class name. 0 if unknown.
int class_number(const std::string& name) {
  for (int number = 1; number <= static_cast<int>(MatClass::kOpaque); ++number) {
    if (mat_class_name(number) == name) return number;
  }
  return 0;
}

/// HDF5's types for a dtype: in memory, and in files of either byte order. Negative if MATLAB has none.
struct Hdf5Types {
  hid_t memory = -1, little = -1, big = -1;
};
Hdf5Types hdf5_types(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return {H5T_NATIVE_DOUBLE, H5T_IEEE_F64LE, H5T_IEEE_F64BE};
    case at::kFloat:
      return {H5T_NATIVE_FLOAT, H5T_IEEE_F32LE, H5T_IEEE_F32BE};
    case at::kChar:
      return {H5T_NATIVE_INT8, H5T_STD_I8LE, H5T_STD_I8BE};
    case at::kBool:
    case at::kByte:
      return {H5T_NATIVE_UINT8, H5T_STD_U8LE, H5T_STD_U8BE};
    case at::kShort:
      return {H5T_NATIVE_INT16, H5T_STD_I16LE, H5T_STD_I16BE};
    case at::kUInt16:
      return {H5T_NATIVE_UINT16, H5T_STD_U16LE, H5T_STD_U16BE};
    case at::kInt:
      return {H5T_NATIVE_INT32, H5T_STD_I32LE, H5T_STD_I32BE};
    case at::kUInt32:
      return {H5T_NATIVE_UINT32, H5T_STD_U32LE, H5T_STD_U32BE};
    case at::kLong:
      return {H5T_NATIVE_INT64, H5T_STD_I64LE, H5T_STD_I64BE};
    case at::kUInt64:
      return {H5T_NATIVE_UINT64, H5T_STD_U64LE, H5T_STD_U64BE};
    default:
      return {};
  }
}

bool stored_as(hid_t type, at::ScalarType dtype) {
  const Hdf5Types types = hdf5_types(dtype);
  return types.memory >= 0 && (H5Tequal(type, types.little) > 0 || H5Tequal(type, types.big) > 0);
}

/// Returns MATLAB's sizes, which are HDF5's reversed. Empty if there are none.
std::vector<int64_t> sizes_of(hid_t dataset) {
  const Hdf5Handle space(H5Dget_space(dataset));
  if (!space || H5Sget_simple_extent_type(space) != H5S_SIMPLE) return {};
  const int dimensions = H5Sget_simple_extent_ndims(space);
  if (dimensions < 1 || dimensions > kMostDimensions73) return {};
  std::vector<hsize_t> sizes(dimensions);
  if (H5Sget_simple_extent_dims(space, sizes.data(), nullptr) < 0) return {};
  std::vector<int64_t> result;
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    result.push_back(static_cast<int64_t>(std::min<hsize_t>(*size, std::numeric_limits<int64_t>::max())));
  }
  return result;
}

MatVariable describe(hid_t root, const std::string& name) {
  MatVariable variable{.name = name, .type = "unreadable object", .dtype = {}, .sizes = {}};
  H5L_info_t link;
  if (H5Lget_info(root, name.c_str(), &link, H5P_DEFAULT) < 0) return variable;
  if (link.type != H5L_TYPE_HARD) {
    variable.type = "link";  // possibly to another file
    return variable;
  }
  const Hdf5Handle object(H5Oopen(root, name.c_str(), H5P_DEFAULT));
  if (!object) return variable;
  const std::string class_name = attribute(object, "MATLAB_class");
  variable.type = class_name.empty() ? "HDF5 object without a class of MATLAB" : class_name;
  if (H5Iget_type(object) != H5I_DATASET) {
    if (H5Aexists(object, "MATLAB_sparse") > 0) variable.type = "sparse";
    if (class_name.empty()) variable.type = "struct";
    return variable;
  }
  variable.sizes = sizes_of(object);
  const Hdf5Handle type(H5Dget_type(object));
  if (type && H5Tget_class(type) == H5T_COMPOUND) {
    variable.type = "complex " + variable.type;
  } else if (H5Aexists(object, "MATLAB_empty") > 0) {
    variable.type = "empty " + variable.type;
  } else {
    variable.dtype = class_name == "logical" ? std::optional(at::kBool) : mat_class_dtype(class_number(class_name));
  }
  return variable;
}

absl::StatusOr<std::vector<MatVariable>> list_variables(hid_t file) {
  const Hdf5Handle root(H5Gopen2(file, "/", H5P_DEFAULT));
  H5G_info_t info;
  if (!root || H5Gget_info(root, &info) < 0) return damaged("HDF5 cannot read the list of variables");
  if (info.nlinks > static_cast<hsize_t>(kMostVariables73))
    return refused(fmt::format("more than {} variables", kMostVariables73));
  std::vector<MatVariable> variables;
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    const auto copy = [&](char* to, size_t size) {
      return H5Lget_name_by_idx(root, ".", H5_INDEX_NAME, H5_ITER_INC, i, to, size, H5P_DEFAULT);
    };
    const ssize_t length = copy(nullptr, 0);
    if (length <= 0 || length > 4096) return damaged("HDF5 cannot read the name of a variable");
    std::string name(static_cast<size_t>(length), '\0');
    if (copy(name.data(), name.size() + 1) < 0) return damaged("HDF5 cannot read the name of a variable");
    if (name[0] != '#') variables.push_back(describe(root, name));  // names such as '#refs#' are internal to MATLAB
  }
  return variables;
}

/// Storage of a dataset's chunks.
struct Chunks {
  std::vector<hsize_t> sizes;  // sizes of the dataset in HDF5's order
  std::vector<hsize_t> chunk;
  int64_t bytes = 0;  // size of an uncompressed chunk
  int filters = 0;
  unsigned deflate_bit = 0;  // deflate's bit in a chunk's mask of skipped filters; 0 without compression
};

absl::Status check_filters(hid_t properties, Chunks& chunks) {
  const int filters = chunks.filters = H5Pget_nfilters(properties);
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0, config = 0;
    size_t values = 0;
    const H5Z_filter_t filter = H5Pget_filter2(properties, i, &flags, &values, nullptr, 0, nullptr, &config);
    if (filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE) {
      return refused(fmt::format("filter {} of HDF5 is not used by MATLAB", static_cast<int>(filter)));
    }
    if (filter == H5Z_FILTER_DEFLATE) chunks.deflate_bit = 1U << i;
    if (filter == H5Z_FILTER_DEFLATE && i + 1 != filters) return refused("another filter follows the compression");
  }
  return filters < 0 ? damaged("HDF5 cannot read the filters") : absl::OkStatus();
}

absl::Status wrong_size(hsize_t size, int64_t needed) {
  return damaged(fmt::format("a chunk has {} bytes, {} are needed", size, needed));
}

/// Checks that a compressed chunk has exactly `bytes` bytes. See Note [Checking HDF5 chunks before reading].
absl::Status check_inflated(const std::vector<char>& stored, int64_t bytes) {
  Inflater inflater(std::as_bytes(std::span(stored)));
  std::vector<char> piece(static_cast<size_t>(std::min<int64_t>(bytes, 1 << 18)));
  for (int64_t left = bytes; left > 0;) {
    const auto size = static_cast<size_t>(std::min<int64_t>(left, static_cast<int64_t>(piece.size())));
    TRAINKIT_ASSIGN_OR_RETURN(const size_t got, inflater.read(piece.data(), size));
    if (got < size) return damaged("the compressed data ends before its chunk");
    left -= static_cast<int64_t>(size);
  }
  return inflater.finish();
}

absl::Status check_chunk(hid_t dataset, const Chunks& chunks, const std::vector<hsize_t>& at, int64_t file_bytes,
                         std::vector<char>& stored) {
  hsize_t size = 0;
  if (H5Dget_chunk_storage_size(dataset, at.data(), &size) < 0 || size == 0) return damaged("a chunk of it is missing");
  if (size > static_cast<hsize_t>(file_bytes))
    return damaged(fmt::format("a chunk claims {} bytes, the file has {}", size, file_bytes));
  if (chunks.deflate_bit == 0) {
    return size == static_cast<hsize_t>(chunks.bytes) ? absl::OkStatus() : wrong_size(size, chunks.bytes);
  }
  uint32_t left_out = 0;
  stored.resize(size);
  if (H5Dread_chunk(dataset, H5P_DEFAULT, at.data(), &left_out, stored.data()) < 0)
    return damaged("HDF5 cannot read a chunk of it");
  if ((left_out & chunks.deflate_bit) == 0) return check_inflated(stored, chunks.bytes);
  // Incompressible data is stored uncompressed.
  return size == static_cast<hsize_t>(chunks.bytes) ? absl::OkStatus() : wrong_size(size, chunks.bytes);
}

/// Checks the chunk index of a dataset without filters. See Note [Checking HDF5 chunks before reading].
absl::Status check_index(hid_t dataset, const Chunks& chunks) {
  const Hdf5Handle space(H5Dget_space(dataset));
  hsize_t count = 0;
  if (!space || H5Dget_num_chunks(dataset, space, &count) < 0) return damaged("HDF5 cannot read its chunk index");
  if (count > kMostPlainChunks) return refused(fmt::format("more than {} chunks without a filter", kMostPlainChunks));
  std::vector<hsize_t> at(chunks.sizes.size());
  for (hsize_t i = 0; i < count; ++i) {
    unsigned left_out = 0;
    haddr_t address = 0;
    hsize_t size = 0;
    if (H5Dget_chunk_info(dataset, space, i, at.data(), &left_out, &address, &size) < 0)
      return damaged("HDF5 cannot read its chunk index");
    if (size != static_cast<hsize_t>(chunks.bytes)) return wrong_size(size, chunks.bytes);
  }
  return absl::OkStatus();
}

absl::Status check_chunks(hid_t dataset, hid_t properties, const MatVariable& variable, int64_t file_bytes) {
  Chunks chunks;
  TRAINKIT_RETURN_IF_ERROR(check_filters(properties, chunks));
  chunks.sizes.assign(variable.sizes.rbegin(), variable.sizes.rend());
  chunks.chunk.resize(chunks.sizes.size());
  const int dimensions = static_cast<int>(chunks.sizes.size());
  if (H5Pget_chunk(properties, dimensions, chunks.chunk.data()) != dimensions)
    return damaged("HDF5 cannot read the size of its chunks");
  chunks.bytes = array_bytes(std::vector<int64_t>(chunks.chunk.begin(), chunks.chunk.end()),
                             static_cast<int64_t>(c10::elementSize(*variable.dtype)));
  if (chunks.bytes <= 0 || chunks.bytes > kMostChunkBytes)
    return refused(fmt::format("chunks of more than {}", describe_bytes(kMostChunkBytes)));
  int64_t count = 1;
  for (int d = 0; d < dimensions; ++d) {
    const auto along = static_cast<int64_t>((chunks.sizes[d] - 1) / chunks.chunk[d] + 1);
    if (__builtin_mul_overflow(count, along, &count) || count > kMostChunks)
      return refused(fmt::format("more than {} chunks", kMostChunks));
  }
  if (chunks.filters == 0) TRAINKIT_RETURN_IF_ERROR(check_index(dataset, chunks));
  std::vector<hsize_t> at(dimensions, 0);
  std::vector<char> stored;
  for (int64_t i = 0; i < count; ++i) {
    TRAINKIT_RETURN_IF_ERROR(check_chunk(dataset, chunks, at, file_bytes, stored));
    for (int d = dimensions; d-- > 0 && (at[d] += chunks.chunk[d]) >= chunks.sizes[d];) at[d] = 0;
  }
  return absl::OkStatus();
}

absl::Status check_dataset(hid_t dataset, const MatVariable& variable, int64_t file_bytes, const MatOptions& options) {
  const Hdf5Handle type(H5Dget_type(dataset)), properties(H5Dget_create_plist(dataset));
  if (!type || !properties) return damaged("HDF5 cannot read its description");
  if (!stored_as(type, *variable.dtype))
    return refused(fmt::format("its stored type does not match its class {}", variable.type));
  if (variable.sizes.size() < 2)
    return refused(fmt::format("has {} dimensions, 2 to {} are possible", variable.sizes.size(), kMostDimensions73));
  const int64_t bytes = array_bytes(variable.sizes, static_cast<int64_t>(c10::elementSize(*variable.dtype)));
  const std::string sizes = describe_sizes(variable.sizes);
  if (bytes < 0) return refused(fmt::format("a size of {} overflows", sizes));
  if (bytes == 0) return refused(fmt::format("an array of {} is empty", sizes));
  if (bytes > options.max_variable_bytes) {
    return refused(fmt::format("an array of {} takes {}, the limit is {}", sizes, describe_bytes(bytes),
                               describe_bytes(options.max_variable_bytes)));
  }
  if (H5Pget_external_count(properties) != 0) return refused("its data is in other files");
  switch (H5Pget_layout(properties)) {
    case H5D_CHUNKED:
      return check_chunks(dataset, properties, variable, file_bytes);
    case H5D_CONTIGUOUS:
    case H5D_COMPACT:
      break;
    default:
      return refused("its data is a virtual view of other datasets");
  }
  if (static_cast<int64_t>(H5Dget_storage_size(dataset)) != bytes) {
    return damaged(fmt::format("an array of {} needs {} bytes of data, the file has {}", sizes, bytes,
                               H5Dget_storage_size(dataset)));
  }
  return absl::OkStatus();
}

void put(Message& message, const MatVariable& variable) {
  message.put(variable.name);
  message.put(variable.type);
  message.put(variable.dtype ? static_cast<int64_t>(*variable.dtype) : -1);
  message.put(static_cast<int64_t>(variable.sizes.size()));
  for (const int64_t size : variable.sizes) message.put(size);
}

MatVariable next_variable(Message& message) {
  MatVariable variable{.name = message.text(), .type = message.text(), .dtype = {}, .sizes = {}};
  if (const int64_t dtype = message.number(); dtype >= 0) variable.dtype = static_cast<at::ScalarType>(dtype);
  variable.sizes.resize(static_cast<size_t>(message.number()));
  for (int64_t& size : variable.sizes) size = message.number();
  return variable;
}

/// Lists the variables in a forked copy. See Note [Checking HDF5 chunks before reading].
absl::StatusOr<std::vector<MatVariable>> list_in_copy(const MappedFile& file) {
  const Hdf5Session session;
  TRAINKIT_ASSIGN_OR_RETURN(std::string reply, run_forked([&] {
                              Message message;
                              const auto list = [&]() -> absl::StatusOr<std::vector<MatVariable>> {
                                const Hdf5Handle hdf5 = open_mapped(file);
                                if (!hdf5) return damaged("HDF5 cannot open it: damaged or not HDF5");
                                auto variables = list_variables(hdf5);
                                if (file.damaged()) return damaged("was truncated while it was read");
                                return variables;
                              };
                              const auto variables = list();
                              message.put(variables.status());
                              if (!variables.ok()) return message.take();
                              message.put(static_cast<int64_t>(variables->size()));
                              for (const MatVariable& variable : *variables) put(message, variable);
                              return message.take();
                            }));
  Message message(std::move(reply));
  TRAINKIT_RETURN_IF_ERROR(message.status());
  std::vector<MatVariable> variables(static_cast<size_t>(message.number()));
  for (MatVariable& variable : variables) variable = next_variable(message);
  return variables;
}

class Mat73 final : public MatSource {
 public:
  Mat73(std::shared_ptr<const MappedFile> file, std::vector<MatVariable> variables, const MatOptions& options)
      : MatSource(file->path(), std::move(variables)), file_(std::move(file)), options_(options) {}

  absl::StatusOr<at::Tensor> read(size_t index) const override {
    const MatVariable& variable = variables()[index];
    auto tensor = read(variable);
    TRAINKIT_RETURN_IF_ERROR(file_->check());
    if (tensor.ok() || error_of(tensor.status())) return tensor;
    return mat_error({.path = path(), .variable = variable.name, .problem = std::string(tensor.status().message())},
                     tensor.status().code());
  }

 private:
  absl::StatusOr<at::Tensor> read(const MatVariable& variable) const {
    const int64_t bytes = array_bytes(variable.sizes, static_cast<int64_t>(c10::elementSize(*variable.dtype)));
    const bool readable = bytes > 0 && bytes <= options_.max_variable_bytes;  // otherwise the copy reports the error
    const SharedPages pages(readable ? static_cast<size_t>(bytes) : 1);
    if (!pages.data()) return absl::ResourceExhaustedError("no memory for " + describe_bytes(bytes));
    const Hdf5Session session;
    TRAINKIT_ASSIGN_OR_RETURN(std::string reply, run_forked([&] {
                                Message message;
                                absl::Status status = read_columns(variable, pages.data());
                                if (file_->damaged()) status = damaged("was truncated while it was read");
                                message.put(status);
                                return message.take();
                              }));
    TRAINKIT_RETURN_IF_ERROR(Message(std::move(reply)).status());
    const at::Tensor rows = row_major(column_major(variable, pages.data()), variable);
    return rows.const_data_ptr() == pages.data() ? rows.clone() : rows;
  }

  /// Reads a variable; runs in the forked copy. Does not use libmatio, which reads every preceding variable, checked or
  /// not.
  absl::Status read_columns(const MatVariable& variable, void* to) const {
    const Hdf5Handle file = open_mapped(*file_);
    const Hdf5Handle dataset(file ? H5Dopen2(file, variable.name.c_str(), H5P_DEFAULT) : -1);
    if (!dataset) return damaged("HDF5 can no longer open it");
    if (sizes_of(dataset) != variable.sizes) return damaged("changed while it was read");
    TRAINKIT_RETURN_IF_ERROR(check_dataset(dataset, variable, static_cast<int64_t>(file_->bytes().size()), options_));
    const hid_t type = hdf5_types(*variable.dtype).memory;
    if (H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, to) < 0) return damaged("HDF5 cannot read its data");
    return absl::OkStatus();
  }

  std::shared_ptr<const MappedFile> file_;
  MatOptions options_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const MatSource>> open_mat73(std::shared_ptr<const MappedFile> file,
                                                            const MatOptions& options) {
  const auto list = [&]() -> absl::StatusOr<std::vector<MatVariable>> {
    TRAINKIT_RETURN_IF_ERROR(check_superblock(file->text()));
    return list_in_copy(*file);
  };
  auto variables = list();
  TRAINKIT_RETURN_IF_ERROR(file->check());
  if (!variables.ok()) {
    return mat_error({.path = file->path(), .offset = kUserBlock, .problem = std::string(variables.status().message())},
                     variables.status().code());
  }
  return std::make_shared<const Mat73>(std::move(file), *std::move(variables), options);
}

}  // namespace trainkit::detail
