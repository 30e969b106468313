#include "arrays/hdf5/hdf5_mapped.h"

#include <cstring>

namespace trainkit::detail {
namespace {

// Note [HDF5 from memory]
//
// HDF5 1.10's own file drivers collect small metadata reads in a cache (H5FD_FEAT_ACCUMULATE_METADATA). If a damaged
// file contains an address near 2^64, that code copies from invalid memory. This driver reports no features in query(),
// so HDF5 passes every read to read(), which checks it against the mapping.
//
// The driver refuses writes and reads past the end of the file. It also cannot open a second file: it ignores names and
// uses only the MappedFile in the property list. A file that another process truncates reads as zeros; see Note [SIGBUS
// on mapped files].

/// The driver's state of an open file. HDF5's part must come first.
struct Open {
  H5FD_t base = {};
  const MappedFile* file = nullptr;
  haddr_t end = 0;  // end of the address space that HDF5 considers in use
};

/// The driver's entry in a property list: the file.
struct Setting {
  const MappedFile* file = nullptr;
};

Open& opened(H5FD_t* file) { return *reinterpret_cast<Open*>(file); }
const Open& opened(const H5FD_t* file) { return *reinterpret_cast<const Open*>(file); }

H5FD_t* open(const char*, unsigned flags, hid_t properties, haddr_t) {
  const auto* setting = static_cast<const Setting*>(H5Pget_driver_info(properties));
  if (setting == nullptr || flags != H5F_ACC_RDONLY) return nullptr;
  return &(new Open{.file = setting->file})->base;
}

herr_t close(H5FD_t* file) {
  delete &opened(file);
  return 0;
}

herr_t query(const H5FD_t*, unsigned long* flags) {
  if (flags != nullptr) *flags = 0;  // no caches, see Note [HDF5 from memory]
  return 0;
}

haddr_t get_end(const H5FD_t* file, H5FD_mem_t) { return opened(file).end; }

herr_t set_end(H5FD_t* file, H5FD_mem_t, haddr_t end) {
  opened(file).end = end;
  return 0;
}

haddr_t get_size(const H5FD_t* file, H5FD_mem_t) { return opened(file).file->bytes().size(); }

herr_t read(H5FD_t* file, H5FD_mem_t kind, hid_t, haddr_t at, size_t size, void* out) {
  if (RecordedReads::active != nullptr && kind == H5FD_MEM_DRAW) {
    RecordedReads::active->add(at, size);
    return 0;
  }
  const auto bytes = opened(file).file->bytes();
  if (at > bytes.size() || size > bytes.size() - at) return -1;
  std::memcpy(out, bytes.data() + at, size);
  return 0;
}

herr_t write(H5FD_t*, H5FD_mem_t, hid_t, haddr_t, size_t, const void*) { return -1; }

/// Registers the driver, again if HDF5 was shut down since the last call.
hid_t driver() {
  static hid_t id = -1;
  if (id >= 0 && H5Iget_type(id) == H5I_VFL) return id;
  H5FD_class_t own = {};
#ifdef H5FD_CLASS_VERSION  // HDF5 1.14, which refuses a driver without them; it reserves the numbers below 256
  own.version = H5FD_CLASS_VERSION;
  own.value = 510;
#endif
  own.name = "trainkit_mapped";
  own.maxaddr = HADDR_MAX;
  own.fc_degree = H5F_CLOSE_WEAK;
  own.fapl_size = sizeof(Setting);
  own.open = open;
  own.close = close;
  own.query = query;
  own.get_eoa = get_end;
  own.set_eoa = set_end;
  own.get_eof = get_size;
  own.read = read;
  own.write = write;
  for (H5FD_mem_t& kind : own.fl_map) kind = H5FD_MEM_DEFAULT;
  id = H5FDregister(&own);
  return id;
}

}  // namespace

constinit LateLibrary hdf5{TRAINKIT_HDF5_LIBRARY, "HDF5", "libhdf5-103-1", TRAINKIT_CARRIED("hdf5")};

RecordedReads* RecordedReads::active = nullptr;

Hdf5Handle open_mapped(const MappedFile& file) {
  const Hdf5Handle properties(H5Pcreate(H5P_FILE_ACCESS));
  const Setting setting{&file};
  if (!properties || H5Pset_driver(properties, driver(), &setting) < 0) return Hdf5Handle(-1);
  return Hdf5Handle(H5Fopen(file.path().c_str(), H5F_ACC_RDONLY, properties));
}

}  // namespace trainkit::detail
