#include "arrays/hdf5/hdf5_layout.h"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <span>

#include "arrays/files/stored_array.h"
#include "arrays/hdf5/hdf5_handle.h"
#include "arrays/hdf5/hdf5_mapped.h"
#include "arrays/hdf5/message.h"
#include "arrays/hdf5/run_forked.h"
#include "core/files/array_bytes.h"
#include "io/files/inflate.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr int64_t kMostChunks = 1'000'000, kMostChunkBytes = int64_t{256} << 20;
constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
constexpr int64_t kMostInflation = 1032;  // bytes from one byte of a deflate stream

// Note [HDF5 finds, we read]
//
// HDF5 1.10 trusts the sizes in a file. It only parses the structure of a file, in a forked copy (Note [Reading in a
// forked copy]: it uses freed memory when it closes some damaged files), and tells where the elements of a dataset lie.
// The calling process checks these places and reads the elements itself, from the mapped file:
//   Filters: only shuffle and deflate (gzip), with deflate last.
//   Chunks: each must lie within the file, and give exactly the size of a chunk. Together they take no more bytes than
//   the file has.
//   Other layouts: the stored size must equal the size of the array.
// The place of a chunk is the one that HDF5 reads in H5Dread_chunk: our driver notes it instead of copying from it
// (RecordedReads). HDF5 1.10 has no function that returns it without going through all chunks before it.

size_t element_bytes(const Hdf5Dataset& dataset) { return c10::elementSize(dataset.dtype); }

int64_t bytes_of(const std::vector<int64_t>& sizes, const Hdf5Dataset& dataset) {
  return array_bytes(sizes, static_cast<int64_t>(element_bytes(dataset)));
}

absl::Status check_type(hid_t type, Hdf5Layout& layout) {
  const Hdf5Types types = hdf5_types(layout.dataset.dtype);
  const Hdf5Handle base(H5Tget_class(type) == H5T_ENUM ? H5Tget_super(type) : H5Tcopy(type));
  // An enumeration of bools has int8 in h5py.
  const auto is = [&](hid_t stored) { return base && stored >= 0 && H5Tequal(base, stored) > 0; };
  const bool is_bool = layout.dataset.dtype == at::kBool && is(H5T_STD_I8LE);
  layout.is_swapped = is(types.big) && !is(types.little);
  if (is(types.little) || layout.is_swapped || is_bool) return absl::OkStatus();
  return refused(fmt::format("its stored type does not match its class {}", layout.dataset.type));
}

absl::Status find_filters(hid_t properties, Hdf5Layout& layout) {
  const int filters = H5Pget_nfilters(properties);
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0, config = 0, value = 0;
    size_t values = 1;
    const H5Z_filter_t filter = H5Pget_filter2(properties, i, &flags, &values, &value, 0, nullptr, &config);
    const bool is_shuffle = filter == H5Z_FILTER_SHUFFLE;
    if (!is_shuffle && filter != H5Z_FILTER_DEFLATE) {
      return refused(
          fmt::format("filter {} of HDF5 is not read (only shuffle and gzip are)", static_cast<int>(filter)));
    }
    if (layout.deflate != 0) return refused("another filter follows the compression");
    if (is_shuffle && (layout.shuffle != 0 || (values > 0 && value != element_bytes(layout.dataset)))) {
      return refused("it is shuffled in another way than by its elements");
    }
    (is_shuffle ? layout.shuffle : layout.deflate) = uint64_t{1} << i;
  }
  return filters < 0 ? damaged("HDF5 cannot read the filters") : absl::OkStatus();
}

absl::Status wrong_size(uint64_t size, int64_t needed) {
  return damaged(fmt::format("a chunk has {} bytes, {} are needed", size, needed));
}

/// Number of chunks along each dimension; nullopt for too many.
std::optional<std::vector<int64_t>> chunk_counts(const Hdf5Layout& layout) {
  std::vector<int64_t> counts;
  int64_t all = 1;
  for (size_t d = 0; d < layout.chunk.size(); ++d) {
    counts.push_back((layout.dataset.sizes[d] - 1) / layout.chunk[d] + 1);
    if (__builtin_mul_overflow(all, counts.back(), &all) || all > kMostChunks) return std::nullopt;
  }
  return counts;
}

/// Moves on to the next position below `ends`, the last dimension first. False after the last one.
bool advance(std::vector<int64_t>& at, const std::vector<int64_t>& begins, const std::vector<int64_t>& ends) {
  for (size_t d = at.size(); d-- > 0;) {
    if (++at[d] < ends[d]) return true;
    at[d] = begins[d];
  }
  return false;
}

absl::Status find_chunks(hid_t dataset, hid_t properties, Hdf5Layout& layout) {
  TRAINKIT_RETURN_IF_ERROR(find_filters(properties, layout));
  const int dimensions = static_cast<int>(layout.dataset.sizes.size());
  std::vector<hsize_t> chunk(layout.dataset.sizes.size());
  if (H5Pget_chunk(properties, dimensions, chunk.data()) != dimensions)
    return damaged("HDF5 cannot read the size of its chunks");
  layout.chunk.assign(chunk.begin(), chunk.end());
  const int64_t bytes = bytes_of(layout.chunk, layout.dataset);
  if (bytes <= 0 || bytes > kMostChunkBytes)
    return refused(fmt::format("chunks of more than {}", describe_bytes(kMostChunkBytes)));
  const auto counts = chunk_counts(layout);
  if (!counts) return refused(fmt::format("more than {} chunks", kMostChunks));
  const std::vector<int64_t> zeros(counts->size(), 0);
  std::vector<int64_t> at = zeros;
  std::vector<hsize_t> first(at.size());
  do {
    for (size_t d = 0; d < at.size(); ++d)
      first[d] = static_cast<hsize_t>(at[d]) * static_cast<hsize_t>(layout.chunk[d]);
    RecordedReads reads;
    uint32_t skipped = 0;
    if (H5Dread_chunk(dataset, H5P_DEFAULT, first.data(), &skipped, &reads) < 0 || reads.count() != 1)
      return damaged("a chunk of it is missing");
    layout.pieces.push_back({reads.offset(), reads.bytes(), skipped});
  } while (advance(at, zeros, *counts));
  return absl::OkStatus();
}

/// Finds the elements of an open dataset; runs in the forked copy.
absl::Status find_elements(hid_t dataset, Hdf5Layout& layout) {
  const Hdf5Handle type(H5Dget_type(dataset)), properties(H5Dget_create_plist(dataset)), space(H5Dget_space(dataset));
  if (!type || !properties || !space) return damaged("HDF5 cannot read its description");
  if (hdf5_sizes(space) != layout.dataset.sizes) return damaged("changed while it was read");
  TRAINKIT_RETURN_IF_ERROR(check_type(type, layout));
  const int64_t bytes = bytes_of(layout.dataset.sizes, layout.dataset);
  if (bytes < 0) return refused(fmt::format("a size of {} overflows", fmt::join(layout.dataset.sizes, " x ")));
  if (H5Pget_external_count(properties) != 0) return refused("its data is in other files");
  const H5D_layout_t kind = H5Pget_layout(properties);
  if (kind != H5D_CHUNKED && kind != H5D_CONTIGUOUS && kind != H5D_COMPACT)
    return refused("its data is a virtual view of other datasets");
  if (bytes == 0) return absl::OkStatus();
  if (kind == H5D_CHUNKED) return find_chunks(dataset, properties, layout);
  if (const hsize_t stored = H5Dget_storage_size(dataset); static_cast<int64_t>(stored) != bytes) {
    return damaged(fmt::format("an array of {} needs {} bytes of data, the file has {}",
                               fmt::join(layout.dataset.sizes, " x "), bytes, stored));
  }
  if (kind == H5D_CONTIGUOUS) {
    const haddr_t offset = H5Dget_offset(dataset);
    if (offset == HADDR_UNDEF) return damaged("HDF5 cannot find its data");
    layout.pieces.push_back({offset, static_cast<uint64_t>(bytes), 0});
    return absl::OkStatus();
  }
  layout.compact.resize(static_cast<size_t>(bytes));
  if (H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, layout.compact.data()) < 0)
    return damaged("HDF5 cannot read its data");
  return absl::OkStatus();
}

std::string layout_as_text(const MappedFile& file, Hdf5Layout layout) {
  const auto find = [&]() -> absl::Status {
    const Hdf5Handle hdf5 = open_mapped(file);
    const Hdf5Handle dataset(hdf5 ? H5Dopen2(hdf5, layout.dataset.path.c_str(), H5P_DEFAULT) : -1);
    if (!dataset) return damaged("HDF5 can no longer open it");
    TRAINKIT_RETURN_IF_ERROR(find_elements(dataset, layout));
    return file.damaged() ? damaged("was truncated while it was read") : absl::OkStatus();
  };
  Message message;
  const absl::Status status = find();
  message.put(status);
  if (!status.ok()) return message.take();
  message.put(int64_t{layout.is_swapped});
  message.put(static_cast<int64_t>(layout.shuffle));
  message.put(static_cast<int64_t>(layout.deflate));
  message.put(layout.compact);
  message.put(static_cast<int64_t>(layout.chunk.size()));
  for (const int64_t size : layout.chunk) message.put(size);
  message.put(static_cast<int64_t>(layout.pieces.size()));
  for (const Hdf5Layout::Piece& piece : layout.pieces) {
    for (const uint64_t number : {piece.offset, piece.bytes, piece.skipped}) message.put(static_cast<int64_t>(number));
  }
  return message.take();
}

/// Checks that the pieces lie within the file; see Note [HDF5 finds, we read].
absl::Status check_pieces(const Hdf5Layout& layout, uint64_t file_bytes) {
  const int64_t needed = bytes_of(layout.chunk.empty() ? layout.dataset.sizes : layout.chunk, layout.dataset);
  const bool is_compact = !layout.compact.empty();
  size_t count = needed > 0 && !is_compact ? 1 : 0;
  if (!layout.chunk.empty()) {
    const bool fits = !is_compact && needed <= kMostChunkBytes && layout.chunk.size() == layout.dataset.sizes.size() &&
                      *std::min_element(layout.chunk.begin(), layout.chunk.end()) > 0;
    const auto counts = fits ? chunk_counts(layout) : std::nullopt;
    for (const int64_t along : counts.value_or(std::vector<int64_t>{0})) count *= static_cast<size_t>(along);
    if (count == 0) return damaged("its reader was damaged by it");
  }
  if (layout.pieces.size() != count || (is_compact && std::ssize(layout.compact) != needed))
    return damaged("its reader was damaged by it");
  uint64_t all = 0;
  for (const Hdf5Layout::Piece& piece : layout.pieces) {
    if (piece.offset > file_bytes || piece.bytes > file_bytes - piece.offset)
      return damaged(fmt::format("a chunk claims {} bytes, the file has {}", piece.bytes, file_bytes));
    all += piece.bytes;
    if (all > file_bytes) return damaged("its chunks claim more bytes than the file has");
    const bool is_packed = layout.deflate != 0 && (piece.skipped & layout.deflate) == 0;
    if (is_packed ? needed / kMostInflation > static_cast<int64_t>(piece.bytes)
                  : piece.bytes != static_cast<uint64_t>(needed)) {
      return wrong_size(piece.bytes, needed);
    }
  }
  return absl::OkStatus();
}

/// Unpacks a stream that must give exactly the bytes of `out`.
absl::Status inflate_exactly(std::span<const std::byte> stored, std::vector<char>& out) {
  Inflater inflater(stored);
  TRAINKIT_ASSIGN_OR_RETURN(const size_t got, inflater.read(out.data(), out.size()));
  if (got < out.size()) return damaged("the compressed data ends before its chunk");
  return inflater.finish();
}

/// Reads the elements of a chunk into `out`. `planes` is room for its bytes before they are put together.
absl::Status read_chunk(const Hdf5Layout& layout, const Hdf5Layout::Piece& piece, const MappedFile& file,
                        std::vector<char>& planes, std::vector<char>& out) {
  const bool is_shuffled = layout.shuffle != 0 && (piece.skipped & layout.shuffle) == 0;
  const bool is_packed = layout.deflate != 0 && (piece.skipped & layout.deflate) == 0;
  const std::span<const std::byte> stored = file.bytes().subspan(piece.offset, piece.bytes);
  std::vector<char>& unpacked = is_shuffled ? planes : out;
  unpacked.resize(out.size());
  if (is_packed) {
    TRAINKIT_RETURN_IF_ERROR(inflate_exactly(stored, unpacked));
  } else {
    std::memcpy(unpacked.data(), stored.data(), unpacked.size());
  }
  if (!is_shuffled) return absl::OkStatus();
  // Byte b of element i is byte i of plane b.
  const size_t width = element_bytes(layout.dataset), elements = out.size() / width;
  for (size_t b = 0; b < width; ++b) {
    for (size_t i = 0; i < elements; ++i) out[i * width + b] = planes[b * elements + i];
  }
  return absl::OkStatus();
}

/// Copies rows [begin, begin + count) of dimension `rows` from the chunks into `out`, which has the dataset's order.
absl::Status read_chunks(const Hdf5Layout& layout, const MappedFile& file, size_t rows, int64_t begin, int64_t count,
                         const at::Tensor& out) {
  const std::vector<int64_t> counts = chunk_counts(layout).value();
  std::vector<int64_t> begins(counts.size(), 0), ends = counts;
  begins[rows] = begin / layout.chunk[rows];
  ends[rows] = (begin + count - 1) / layout.chunk[rows] + 1;
  std::vector<char> planes, bytes(static_cast<size_t>(bytes_of(layout.chunk, layout.dataset)));
  const at::Tensor chunk = at::from_blob(bytes.data(), layout.chunk, out.options());
  std::vector<int64_t> at = begins;
  do {
    size_t index = 0;
    for (size_t d = 0; d < at.size(); ++d) index = index * static_cast<size_t>(counts[d]) + static_cast<size_t>(at[d]);
    TRAINKIT_RETURN_IF_ERROR(read_chunk(layout, layout.pieces[index], file, planes, bytes));
    at::Tensor from = chunk, to = out;
    for (size_t d = 0; d < at.size(); ++d) {
      const int64_t first = at[d] * layout.chunk[d], low = d == rows ? begin : 0;
      const int64_t from_row = std::max(first, low);
      const int64_t to_row = std::min(first + layout.chunk[d], d == rows ? begin + count : layout.dataset.sizes[d]);
      const auto dimension = static_cast<int64_t>(d);
      from = from.narrow(dimension, from_row - first, to_row - from_row);
      to = to.narrow(dimension, from_row - low, to_row - from_row);
    }
    to.copy_(from);
  } while (advance(at, begins, ends));
  return absl::OkStatus();
}

}  // namespace

Hdf5Types hdf5_types(at::ScalarType dtype) {
  const auto half = [](hid_t from) {
    const hid_t type = H5Tcopy(from);
    H5Tset_fields(type, 15, 10, 5, 0, 10);
    H5Tset_size(type, 2);
    H5Tset_ebias(type, 15);
    return type;
  };
  switch (dtype) {
    case at::kDouble:
      return {H5T_IEEE_F64LE, H5T_IEEE_F64BE};
    case at::kFloat:
      return {H5T_IEEE_F32LE, H5T_IEEE_F32BE};
    case at::kHalf: {
      static const Hdf5Types types = {half(H5T_IEEE_F32LE), half(H5T_IEEE_F32BE)};
      return types;
    }
    case at::kChar:
      return {H5T_STD_I8LE, H5T_STD_I8BE};
    case at::kBool:
    case at::kByte:
      return {H5T_STD_U8LE, H5T_STD_U8BE};
    case at::kShort:
      return {H5T_STD_I16LE, H5T_STD_I16BE};
    case at::kUInt16:
      return {H5T_STD_U16LE, H5T_STD_U16BE};
    case at::kInt:
      return {H5T_STD_I32LE, H5T_STD_I32BE};
    case at::kUInt32:
      return {H5T_STD_U32LE, H5T_STD_U32BE};
    case at::kLong:
      return {H5T_STD_I64LE, H5T_STD_I64BE};
    case at::kUInt64:
      return {H5T_STD_U64LE, H5T_STD_U64BE};
    default:
      return {};
  }
}

std::optional<std::vector<int64_t>> hdf5_sizes(hid_t space) {
  const H5S_class_t kind = H5Sget_simple_extent_type(space);
  if (kind == H5S_SCALAR) return std::vector<int64_t>{};
  const int dimensions = H5Sget_simple_extent_ndims(space);
  if (kind != H5S_SIMPLE || dimensions < 1 || dimensions > kMostDimensions) return std::nullopt;
  std::vector<hsize_t> sizes(static_cast<size_t>(dimensions));
  if (H5Sget_simple_extent_dims(space, sizes.data(), nullptr) < 0) return std::nullopt;
  std::vector<int64_t> result;
  result.reserve(sizes.size());
  for (const hsize_t size : sizes) {
    result.push_back(static_cast<int64_t>(std::min<hsize_t>(size, std::numeric_limits<int64_t>::max())));
  }
  return result;
}

std::optional<size_t> find_hdf5(std::string_view text) {
  for (size_t at = 0; at < text.size(); at = at == 0 ? 512 : 2 * at) {
    if (text.substr(at).starts_with(kSignature)) return at;
  }
  return std::nullopt;
}

absl::Status check_superblock(std::string_view text, size_t at) {
  if (text.size() < at + 64) {
    return damaged(fmt::format("{} bytes, too few for the HDF5 part (truncated?)", text.size()));
  }
  const std::string_view block = text.substr(at);
  if (!block.starts_with(kSignature)) return refused(fmt::format("no HDF5 at byte {}", at));
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(block[i]); };
  const auto address = [&](size_t i) {
    uint64_t value = 0;
    for (size_t k = 0; k < 8; ++k) value |= uint64_t{byte(i + k)} << (8 * k);
    return value;
  };
  const unsigned version = byte(8);
  if (version > 3) return refused(fmt::format("HDF5 superblock of version {}, 0 to 3 are known", version));
  const bool old = version < 2;
  if (byte(old ? 13 : 9) != 8 || byte(old ? 14 : 10) != 8) return refused("HDF5 addresses are not of 8 bytes");
  const size_t first = version == 0 ? 24 : version == 1 ? 28 : 12;
  const uint64_t base = address(first), end = address(first + 16);
  constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
  if (base != at) return refused(fmt::format("the superblock gives a base address of {}, not {}", base, at));
  if (old && address(first + 24) != kNone)
    return refused("the HDF5 part requires a driver, which may refer to other files");
  if (end == kNone || end > text.size()) {
    return damaged(
        fmt::format("the superblock gives an end at byte {}, the file has {} (truncated?)", end, text.size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Hdf5Layout> find_hdf5_layout(const MappedFile& file, const Hdf5Dataset& dataset) {
  Hdf5Layout layout{.dataset = dataset};
  const Hdf5Session session;
  TRAINKIT_ASSIGN_OR_RETURN(std::string reply, run_forked([&] { return layout_as_text(file, layout); }));
  Message message(std::move(reply));
  TRAINKIT_RETURN_IF_ERROR(message.status());
  layout.is_swapped = message.number() != 0;
  layout.shuffle = static_cast<uint64_t>(message.number());
  layout.deflate = static_cast<uint64_t>(message.number());
  layout.compact = message.text();
  layout.chunk.resize(message.size(kMostDimensions));
  for (int64_t& size : layout.chunk) size = message.number();
  layout.pieces.resize(message.size(kMostChunks));
  for (Hdf5Layout::Piece& piece : layout.pieces) {
    for (uint64_t* const number : {&piece.offset, &piece.bytes, &piece.skipped})
      *number = static_cast<uint64_t>(message.number());
  }
  TRAINKIT_RETURN_IF_ERROR(check_pieces(layout, file.bytes().size()));
  return layout;
}

absl::StatusOr<at::Tensor> Hdf5Layout::read(const std::shared_ptr<const MappedFile>& file, bool is_reversed,
                                            int64_t begin, int64_t count) const {
  std::vector<int64_t> sizes = dataset.sizes, order(sizes.size());
  for (size_t d = 0; d < order.size(); ++d) {
    order[d] = static_cast<int64_t>(is_reversed ? order.size() - 1 - d : d);
  }
  if (is_reversed) std::reverse(sizes.begin(), sizes.end());
  if (!pieces.empty() && chunk.empty()) {
    const StoredArray array{.file = file,
                            .offset = static_cast<int64_t>(pieces[0].offset),
                            .dtype = dataset.dtype,
                            .sizes = sizes,
                            .order = order,
                            .is_swapped = is_swapped};
    return count == (sizes.empty() ? 1 : sizes[0]) ? array.read() : array.read_rows(begin, count);
  }
  std::vector<int64_t> part = sizes;
  if (!part.empty()) part[0] = count;
  const at::Tensor out = at::empty(part, raw_dtype(dataset.dtype));
  if (!compact.empty()) {
    const auto all = at::from_blob(const_cast<char*>(compact.data()), dataset.sizes, out.options()).permute(order);
    out.copy_(sizes.empty() ? all : all.narrow(0, begin, count));
  } else if (out.numel() > 0) {
    const size_t rows = is_reversed ? sizes.size() - 1 : 0;
    TRAINKIT_RETURN_IF_ERROR(read_chunks(*this, *file, rows, begin, count, out.permute(order)));
    file->release();
  }
  TRAINKIT_RETURN_IF_ERROR(file->check());
  return values_of_raw(out, dataset.dtype, is_swapped);
}

}  // namespace trainkit::detail
