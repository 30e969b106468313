# Finds cpp-httplib as Debian builds it: a shared library whose class layouts depend on these definitions. Target:
# Httplib::Httplib. Used by the program `trainkit` alone.
if(TRAINKIT_PORTABLE)  # the header alone, without OpenSSL
  find_package(ZLIB REQUIRED)
  add_library(Httplib::Httplib INTERFACE IMPORTED)
  target_include_directories(Httplib::Httplib INTERFACE ${TRAINKIT_CARRIED_LIBRARIES}/include)
  target_compile_definitions(Httplib::Httplib INTERFACE CPPHTTPLIB_ZLIB_SUPPORT)
  target_link_libraries(Httplib::Httplib INTERFACE ZLIB::ZLIB)
  set(Httplib_FOUND TRUE)
  return()
endif()
find_path(Httplib_INCLUDE_DIR httplib.h)
find_library(Httplib_LIBRARY cpp-httplib)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Httplib REQUIRED_VARS Httplib_LIBRARY Httplib_INCLUDE_DIR
                                  REASON_FAILURE_MESSAGE "On Debian: apt-get install libcpp-httplib-dev")
mark_as_advanced(Httplib_INCLUDE_DIR Httplib_LIBRARY)
if(Httplib_FOUND AND NOT TARGET Httplib::Httplib)
  add_library(Httplib::Httplib UNKNOWN IMPORTED)
  set_target_properties(Httplib::Httplib PROPERTIES
    IMPORTED_LOCATION ${Httplib_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${Httplib_INCLUDE_DIR}
    INTERFACE_COMPILE_DEFINITIONS "CPPHTTPLIB_OPENSSL_SUPPORT;CPPHTTPLIB_ZLIB_SUPPORT;CPPHTTPLIB_BROTLI_SUPPORT")
endif()
