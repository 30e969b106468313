# How each dependency is found. `./dev setup` installs what is missing; nothing of others is kept in this tree.
include(${CMAKE_CURRENT_LIST_DIR}/torch.cmake)
find_package(absl REQUIRED)
find_package(fmt REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PNG REQUIRED)
find_package(LibCsv REQUIRED)  # libtrainkit/cmake/FindLibCsv.cmake
find_package(Matio REQUIRED)  # libtrainkit/cmake/FindMatio.cmake
find_package(FFmpeg 57.28 REQUIRED)  # libtrainkit/cmake/FindFFmpeg.cmake; the version is libavutil's, of FFmpeg 5.1
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)  # used as a header alone: nothing of it reaches the installed package
