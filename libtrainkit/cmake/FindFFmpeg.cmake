# Finds FFmpeg's libraries, version 5.1 or later. Targets: FFmpeg::avformat, avcodec, avutil, swscale, swresample.
# This project needs the headers, and its tests the libraries. FFmpeg has no CMake package, and pkg-config may be missing.
include(FindPackageHandleStandardArgs)
set(FFmpeg_variables)
foreach(library avformat avcodec swscale swresample avutil)
  find_path(FFmpeg_${library}_INCLUDE_DIR lib${library}/version.h)
  find_library(FFmpeg_${library}_LIBRARY ${library})
  mark_as_advanced(FFmpeg_${library}_INCLUDE_DIR FFmpeg_${library}_LIBRARY)
  list(APPEND FFmpeg_variables FFmpeg_${library}_LIBRARY FFmpeg_${library}_INCLUDE_DIR)
endforeach()
# The version is libavutil's: 57.28 in FFmpeg 5.1 added AVChannelLayout.
if(FFmpeg_avutil_INCLUDE_DIR)
  file(STRINGS ${FFmpeg_avutil_INCLUDE_DIR}/libavutil/version.h FFmpeg_lines
       REGEX "define LIBAVUTIL_VERSION_(MAJOR|MINOR|MICRO)")
  string(REGEX REPLACE "[^0-9]+([0-9]+)" "\\1." FFmpeg_VERSION "${FFmpeg_lines}")
  string(REGEX REPLACE "\\.$" "" FFmpeg_VERSION "${FFmpeg_VERSION}")
endif()
find_package_handle_standard_args(FFmpeg
  REQUIRED_VARS ${FFmpeg_variables} VERSION_VAR FFmpeg_VERSION
  REASON_FAILURE_MESSAGE "On Debian: apt-get install libavformat-dev libavcodec-dev libavutil-dev libswscale-dev libswresample-dev")
if(FFmpeg_FOUND AND NOT TARGET FFmpeg::avutil)
  foreach(library avutil swresample swscale avcodec avformat)
    add_library(FFmpeg::${library} UNKNOWN IMPORTED)
    set_target_properties(FFmpeg::${library} PROPERTIES IMPORTED_LOCATION ${FFmpeg_${library}_LIBRARY}
                                                        INTERFACE_INCLUDE_DIRECTORIES ${FFmpeg_${library}_INCLUDE_DIR})
  endforeach()
  set_property(TARGET FFmpeg::avcodec PROPERTY INTERFACE_LINK_LIBRARIES FFmpeg::avutil)
  set_property(TARGET FFmpeg::avformat PROPERTY INTERFACE_LINK_LIBRARIES FFmpeg::avcodec FFmpeg::avutil)
  set_property(TARGET FFmpeg::swscale FFmpeg::swresample PROPERTY INTERFACE_LINK_LIBRARIES FFmpeg::avutil)
endif()
