# Toolchain file: compiles for 64-bit Arm with clang and lld. TRAINKIT_ARM64_ROOT (environment) is a root of Debian for
# arm64 with the packages of apt-packages.txt. Programs run under qemu-aarch64-static.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER $ENV{CXX})
set(CMAKE_CXX_COMPILER_TARGET aarch64-linux-gnu)
set(CMAKE_SYSROOT $ENV{TRAINKIT_ARM64_ROOT})
set(CMAKE_FIND_ROOT_PATH ${CMAKE_SYSROOT})
if(Torch_DIR)  # LibTorch is outside of the root
  get_filename_component(torch ${Torch_DIR}/../../.. ABSOLUTE)
  list(APPEND CMAKE_FIND_ROOT_PATH ${torch})
endif()
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L ${CMAKE_SYSROOT})
