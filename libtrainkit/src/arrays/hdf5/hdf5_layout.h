#pragma once
/// Finds where the elements of an HDF5 dataset lie in its file, and reads them without HDF5. See Note [HDF5 finds, we
/// read].

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <hdf5.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/io/mapped_file.h"

namespace trainkit::detail {

inline constexpr int kMostDimensions = 32;

inline absl::Status damaged(const std::string& problem) { return absl::DataLossError(problem); }
inline absl::Status refused(const std::string& problem) { return absl::InvalidArgumentError(problem); }

/// HDF5's types for a dtype in files of either byte order. Negative if it has none. Bool is stored as uint8. Needs an
/// Hdf5Session.
struct Hdf5Types {
  hid_t little = -1, big = -1;
};
Hdf5Types hdf5_types(at::ScalarType dtype);

/// Returns the sizes of a dataset or an attribute from its dataspace, the first one the slowest; nullopt without any.
std::optional<std::vector<int64_t>> hdf5_sizes(hid_t space);

/// Returns where the HDF5 part of a file begins: at byte 0, 512, 1024, 2048 and so on; nullopt if it has none.
std::optional<size_t> find_hdf5(std::string_view text);

/// Checks the superblock at byte `at`, with the end of the file that it states.
absl::Status check_superblock(std::string_view text, size_t at);

/// A dataset as it was listed.
struct Hdf5Dataset {
  std::string path = {};
  /// For messages: "double".
  std::string type = {};
  at::ScalarType dtype = at::kByte;
  /// The first one the slowest.
  std::vector<int64_t> sizes = {};
};

/// The elements of a dataset in its file. Thread-safe.
struct Hdf5Layout {
  /// A chunk in the file, or the whole dataset.
  struct Piece {
    uint64_t offset = 0, bytes = 0;
    uint64_t skipped = 0;  ///< Bit i is set if filter i was not applied.
  };
  Hdf5Dataset dataset;
  bool is_swapped = false;
  /// Sizes of a chunk; empty for a dataset in one piece.
  std::vector<int64_t> chunk = {};
  /// The filters' bits in Piece::skipped; 0 for a filter that the dataset does not have.
  uint64_t shuffle = 0, deflate = 0;
  /// The chunks in row-major order.
  std::vector<Piece> pieces = {};
  /// The data of a compact dataset, which is in the header.
  std::string compact = {};

  /// Reads rows [begin, begin + count) of the tensor's first dimension, into a new contiguous CPU tensor. The tensor's
  /// sizes are those of the dataset, in reverse if `is_reversed` (MATLAB). kDataLoss for damaged chunks.
  absl::StatusOr<at::Tensor> read(const std::shared_ptr<const MappedFile>& file, bool is_reversed, int64_t begin,
                                  int64_t count) const;
};

/// Opens the dataset in a forked copy of this process, checks it, and returns where its elements lie. Errors about the
/// dataset: kDataLoss (damaged) and kInvalidArgument (refused).
absl::StatusOr<Hdf5Layout> find_hdf5_layout(const MappedFile& file, const Hdf5Dataset& dataset);

}  // namespace trainkit::detail
