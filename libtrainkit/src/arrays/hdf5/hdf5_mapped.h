#pragma once
/// Reads HDF5 files from a mapped file with bounds checks on every access.

#include <cstdint>

#include "arrays/hdf5/hdf5_handle.h"
#include "trainkit/io/mapped_file.h"

namespace trainkit::detail {

/// Opens `file` for reading with our own file driver; see Note [HDF5 from memory]. `file` must outlive everything
/// opened in it. Call it within an Hdf5Session. Returns a negative handle if HDF5 rejects the file.
Hdf5Handle open_mapped(const MappedFile& file);

/// While it lives, reads of raw data by files of open_mapped() are noted instead of done: the buffer is not written.
/// One object at a time, in a forked copy.
class RecordedReads {
 public:
  RecordedReads() { active = this; }
  ~RecordedReads() { active = nullptr; }
  RecordedReads(const RecordedReads&) = delete;
  RecordedReads& operator=(const RecordedReads&) = delete;

  void add(uint64_t offset, uint64_t bytes) {
    ++count_;
    offset_ = offset;
    bytes_ = bytes;
  }
  int count() const { return count_; }
  /// Of the last read.
  uint64_t offset() const { return offset_; }
  uint64_t bytes() const { return bytes_; }

  static RecordedReads* active;

 private:
  int count_ = 0;
  uint64_t offset_ = 0, bytes_ = 0;
};

}  // namespace trainkit::detail
