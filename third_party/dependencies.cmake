# Finds the dependencies. `./dev setup` installs missing ones; this repository contains no third-party code.
include(${CMAKE_CURRENT_LIST_DIR}/torch.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/portable.cmake)
find_package(absl REQUIRED)
find_package(fmt REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PNG REQUIRED)
find_package(Matio REQUIRED)  # libtrainkit/cmake/FindMatio.cmake
find_package(FFmpeg 57.28 REQUIRED)  # libtrainkit/cmake/FindFFmpeg.cmake; libavutil's version in FFmpeg 5.1
find_path(PROTOZERO_INCLUDE_DIR protozero/pbf_writer.hpp REQUIRED)  # header-only, as the next one
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)  # header-only use: the installed package does not need it
if(TRAINKIT_PORTABLE)
  trainkit_use_archives(absl yaml-cpp)
endif()
if(TRAINKIT_BUILD_APPS)
  find_package(Httplib REQUIRED)  # libtrainkit/cmake/FindHttplib.cmake: trainkit watch
endif()
if(TRAINKIT_BUILD_TESTS OR TRAINKIT_BUILD_BENCHMARKS)
  include(${CMAKE_CURRENT_LIST_DIR}/catch2.cmake)
endif()
