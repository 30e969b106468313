# Finds libmatio and its HDF5 library, which we also call directly. Targets: Matio::Matio, Matio::HDF5.
# Used by this project and its installed package. CMake's FindHDF5 needs a C compiler, which nothing else here needs.
find_path(Matio_INCLUDE_DIR matio.h)
find_library(Matio_LIBRARY matio)
find_path(Matio_HDF5_INCLUDE_DIR hdf5.h PATH_SUFFIXES hdf5/serial)
find_library(Matio_HDF5_LIBRARY NAMES hdf5_serial hdf5 PATH_SUFFIXES hdf5/serial)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Matio
  REQUIRED_VARS Matio_LIBRARY Matio_INCLUDE_DIR Matio_HDF5_LIBRARY Matio_HDF5_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "On Debian: apt-get install libmatio-dev libhdf5-dev")
mark_as_advanced(Matio_INCLUDE_DIR Matio_LIBRARY Matio_HDF5_INCLUDE_DIR Matio_HDF5_LIBRARY)
if(Matio_FOUND AND NOT TARGET Matio::Matio)
  add_library(Matio::HDF5 UNKNOWN IMPORTED)
  set_target_properties(Matio::HDF5 PROPERTIES IMPORTED_LOCATION ${Matio_HDF5_LIBRARY}
                                               INTERFACE_INCLUDE_DIRECTORIES ${Matio_HDF5_INCLUDE_DIR})
  add_library(Matio::Matio UNKNOWN IMPORTED)
  set_target_properties(Matio::Matio PROPERTIES IMPORTED_LOCATION ${Matio_LIBRARY} INTERFACE_LINK_LIBRARIES Matio::HDF5
                                                INTERFACE_INCLUDE_DIRECTORIES ${Matio_INCLUDE_DIR})
endif()
