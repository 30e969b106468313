# Finds libmatio and its HDF5 library, which we also call directly. Targets: Matio::Matio, Matio::HDF5, for tests. The
# library itself loads them by their names for the loader: Matio_SONAME, Matio_HDF5_SONAME. CMake's FindHDF5 needs a C
# compiler, which nothing else here needs.
find_path(Matio_INCLUDE_DIR matio.h)
find_library(Matio_LIBRARY matio)
find_path(Matio_HDF5_INCLUDE_DIR hdf5.h PATH_SUFFIXES hdf5/serial)
find_library(Matio_HDF5_LIBRARY NAMES hdf5_serial hdf5 PATH_SUFFIXES hdf5/serial)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Matio
  REQUIRED_VARS Matio_LIBRARY Matio_INCLUDE_DIR Matio_HDF5_LIBRARY Matio_HDF5_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "On Debian: apt-get install libmatio-dev libhdf5-dev")
mark_as_advanced(Matio_INCLUDE_DIR Matio_LIBRARY Matio_HDF5_INCLUDE_DIR Matio_HDF5_LIBRARY)
if(Matio_FOUND)
  foreach(name Matio Matio_HDF5)
    execute_process(COMMAND ${CMAKE_READELF} -d ${${name}_LIBRARY} OUTPUT_VARIABLE ${name}_SONAME)
    string(REGEX REPLACE ".*SONAME[^[]*\\[([^]]+)\\].*" "\\1" ${name}_SONAME "${${name}_SONAME}")
  endforeach()
endif()
if(Matio_FOUND AND NOT TARGET Matio::Matio)
  add_library(Matio::HDF5 UNKNOWN IMPORTED)
  set_target_properties(Matio::HDF5 PROPERTIES IMPORTED_LOCATION ${Matio_HDF5_LIBRARY}
                                               INTERFACE_INCLUDE_DIRECTORIES ${Matio_HDF5_INCLUDE_DIR})
  add_library(Matio::Matio UNKNOWN IMPORTED)
  set_target_properties(Matio::Matio PROPERTIES IMPORTED_LOCATION ${Matio_LIBRARY} INTERFACE_LINK_LIBRARIES Matio::HDF5
                                                INTERFACE_INCLUDE_DIRECTORIES ${Matio_INCLUDE_DIR})
endif()
