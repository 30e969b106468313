#pragma once
/// RAII wrappers for HDF5's C interface.

#include <mutex>
#include <utility>

#include "arrays/hdf5/hdf5_functions.h"

namespace trainkit::detail {

/// Locks HDF5 and silences its error output while it lives. HDF5 is not thread-safe and prints errors to stderr by
/// default.
///
/// HDF5's exit handler would also print errors about a damaged file. If HDF5 was not used before, the first session
/// disables that handler.
class Hdf5Session {
 public:
  Hdf5Session() : lock_(mutex()) {
    static const herr_t leaves = H5dont_atexit();
    static_cast<void>(leaves);
    H5open();
    H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~Hdf5Session() { H5Eset_auto2(H5E_DEFAULT, function_, data_); }

 private:
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  std::lock_guard<std::mutex> lock_;
  H5E_auto2_t function_ = nullptr;
  void* data_ = nullptr;
};

/// An owned HDF5 handle. Negative if invalid.
class Hdf5Handle {
 public:
  explicit Hdf5Handle(hid_t id) : id_(id) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)) {}
  Hdf5Handle& operator=(Hdf5Handle&&) = delete;
  ~Hdf5Handle() {
    if (id_ < 0) return;
    switch (H5Iget_type(id_)) {
      case H5I_FILE:
        H5Fclose(id_);
        break;
      case H5I_ATTR:
        H5Aclose(id_);
        break;
      case H5I_DATATYPE:
        H5Tclose(id_);
        break;
      case H5I_DATASPACE:
        H5Sclose(id_);
        break;
      case H5I_GENPROP_LST:
        H5Pclose(id_);
        break;
      default:
        H5Oclose(id_);
        break;
    }
  }
  explicit operator bool() const { return id_ >= 0; }
  operator hid_t() const { return id_; }

 private:
  hid_t id_;
};

}  // namespace trainkit::detail
