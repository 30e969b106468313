// An HDF5 file with groups, chunks and attributes, whose structure HDF5 parses in a copy of the process.
#include <hdf5.h>

#include <array>

#include "arrays/hdf5/hdf5_handle.h"
#include "source.h"
#include "target.h"

namespace trainkit::fuzz::hdf5 {
namespace {

void add_array(hid_t group, const char* name, int filters) {
  const std::array<hsize_t, 2> sizes = {6, 5}, chunk = {4, 3};
  const std::array<int16_t, 30> values = {1, 2, 3, 4, 5, 6, 7};
  const trainkit::detail::Hdf5Handle space(H5Screate_simple(2, sizes.data(), nullptr)),
      properties(H5Pcreate(H5P_DATASET_CREATE));
  if (filters > 0) H5Pset_chunk(properties, 2, chunk.data());
  if (filters > 2) H5Pset_shuffle(properties);
  if (filters > 1) H5Pset_deflate(properties, 5);
  const trainkit::detail::Hdf5Handle dataset(
      H5Dcreate2(group, name, H5T_STD_I16LE, space, H5P_DEFAULT, properties, H5P_DEFAULT));
  require(H5Dwrite(dataset, H5T_NATIVE_INT16, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0, "a seed");
  const trainkit::detail::Hdf5Handle attribute(
      H5Acreate2(dataset, "wavelength", H5T_IEEE_F64LE, space, H5P_DEFAULT, H5P_DEFAULT));
  const std::array<double, 30> numbers = {400, 410};
  H5Awrite(attribute, H5T_NATIVE_DOUBLE, numbers.data());
}

}  // namespace

std::vector<std::string> seeds() {
  const trainkit::detail::Hdf5Session session;
  std::vector<std::string> files;
  for (const bool is_latest : {false, true}) {
    const std::string path = folder() + "/seed.h5";
    {
      const trainkit::detail::Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS));
      if (is_latest) H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
      const trainkit::detail::Hdf5Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access));
      const trainkit::detail::Hdf5Handle group(H5Gcreate2(file, "group", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
      add_array(file, "plain", 0);
      add_array(file, "chunked", 1);
      add_array(group, "packed", 2);
      add_array(group, "shuffled", 3);
    }
    files.push_back(read_bytes(path));
  }
  return files;
}

int test_one_input(const uint8_t* data, size_t size) {
  check_source(write_bytes("input.h5", as_text(data, size)));
  return 0;
}

const Registered target("hdf5", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::hdf5
