#pragma once
/// HDF5 files read from memory, every byte of it checked.

#include "io/hdf5_handle.h"
#include "trainkit/io/mapped_file.h"

namespace trainkit::detail {

/// Opens `file` for reading by a driver of our own, which refuses what lies outside of it and, unlike HDF5's, gathers
/// no metadata: HDF5 1.10 copies from nowhere when a damaged file leads it to an address near 2^64. `file` must outlive
/// all that is opened in it. Within a Hdf5Session. Below 0 if HDF5 finds it damaged.
Hdf5Handle open_mapped(const MappedFile& file);

}  // namespace trainkit::detail
