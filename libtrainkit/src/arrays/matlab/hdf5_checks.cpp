#include "arrays/matlab/hdf5_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "arrays/matlab/hdf5_handle.h"
#include "arrays/matlab/mat_source.h"
#include "core/files/array_bytes.h"
#include "io/files/inflate.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr int64_t kMostChunks = 1'000'000, kMostChunkBytes = int64_t{256} << 20;
constexpr hsize_t kMostPlainChunks = 4096;  // without a filter; HDF5 searches the index again for each chunk

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

bool stored_as(hid_t type, at::ScalarType dtype) {
  const Hdf5Types types = hdf5_types(dtype);
  return types.memory >= 0 && (H5Tequal(type, types.little) > 0 || H5Tequal(type, types.big) > 0);
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

}  // namespace

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

}  // namespace trainkit::detail
