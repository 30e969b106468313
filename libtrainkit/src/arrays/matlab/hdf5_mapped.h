#pragma once
/// Reads HDF5 files from a mapped file with bounds checks on every access.

#include "arrays/matlab/hdf5_handle.h"
#include "trainkit/io/mapped_file.h"

namespace trainkit::detail {

/// Opens `file` for reading with our own file driver; see Note [HDF5 from memory]. `file` must outlive everything
/// opened in it. Call it within an Hdf5Session. Returns a negative handle if HDF5 rejects the file.
Hdf5Handle open_mapped(const MappedFile& file);

}  // namespace trainkit::detail
