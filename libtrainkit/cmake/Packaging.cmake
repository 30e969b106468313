# Installs and packages the project: places of the files, and no paths of the build machine in them.

# Make __FILE__ relative in our sources and in LibTorch's headers, so that error messages of installed programs contain no
# folder of the build machine.
get_filename_component(trainkit_torch_parent ${Torch_DIR}/../../../.. ABSOLUTE)
target_compile_options(trainkit_flags INTERFACE -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=
                                                -fmacro-prefix-map=${trainkit_torch_parent}/=)

# Two components: `dev` (headers, archives, CMake package, .pc), the default of install(), and `programs`.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME dev)
add_custom_target(trainkit_installed)  # builds everything that is installed

# trainkit_install_program(NAME): installs a program without a RUNPATH as libexec/trainkit/<LibTorch's series>/<name>, and the
# launcher that finds LibTorch and starts it as bin/<name> (apps/launcher). Packages (TRAINKIT_PORTABLE) have one file with
# all programs there (apps/packaged). Shells load the completion of a program at the first Tab: they ask the program for its
# flags.
set(TRAINKIT_PROGRAMS_DIRECTORY libexec/trainkit/${TRAINKIT_TORCH_SERIES})
function(trainkit_install_program NAME)
  get_target_property(program ${NAME} OUTPUT_NAME)
  if(NOT program)
    set(program ${NAME})
  endif()
  string(REPLACE "-" "_" function _${program})
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/completion)
  file(WRITE ${folder}/${program} "source <(${program} --completion bash 2>/dev/null)\n")
  file(WRITE ${folder}/_${program} "#compdef ${program}\nsource <(${program} --completion zsh 2>/dev/null)\n${function} \"$@\"\n")
  install(FILES ${folder}/${program} DESTINATION share/bash-completion/completions COMPONENT programs)
  install(FILES ${folder}/_${program} DESTINATION share/zsh/site-functions COMPONENT programs)
  install(PROGRAMS $<TARGET_FILE:trainkit-launcher> DESTINATION bin RENAME $<TARGET_FILE_NAME:${NAME}> COMPONENT programs)
  add_dependencies(trainkit_installed trainkit-launcher)
  if(TRAINKIT_PORTABLE)
    set_property(GLOBAL APPEND PROPERTY TRAINKIT_PROGRAMS ${NAME})
    return()
  endif()
  target_sources(${NAME} PRIVATE ${PROJECT_SOURCE_DIR}/apps/launcher/restore_environment.cpp)
  install(TARGETS ${NAME} RUNTIME DESTINATION ${TRAINKIT_PROGRAMS_DIRECTORY} COMPONENT programs)
  add_dependencies(trainkit_installed ${NAME})
endfunction()

# Third-party libraries of the modules: LIBRARY | package for find_package | module or flag for pkg-config.
# LibTorch and CUDA have more code in trainkitTorch.cmake and trainkit.pc.in.
set(TRAINKIT_DEPENDENCIES
  "absl::status|absl|absl_status"
  "absl::statusor|absl|absl_statusor"
  "torch|Torch|"
  "torch_library|Torch|"
  "c10|Torch|"
  "trainkit_cuda|Torch|"
  "trainkit_nccl|Torch|"
  "Threads::Threads|Threads|-pthread"
  "stdc++||-lstdc++"
  "${CMAKE_DL_LIBS}||-l${CMAKE_DL_LIBS}"
  "yaml-cpp|yaml-cpp|yaml-cpp"
  "ZLIB::ZLIB|ZLIB|zlib"
  "PNG::PNG|PNG|libpng")

# trainkit_write_package(DIRECTORY): writes and installs the CMake package (into DIRECTORY below the prefix) and
# trainkit.pc. Both are generated from the libraries that the modules link, so there is no second list to maintain.
function(trainkit_write_package DIRECTORY)
  get_property(modules GLOBAL PROPERTY TRAINKIT_MODULES)
  set(lines)
  set(pc_requires)
  set(pc_flags)
  foreach(module ${modules})
    add_dependencies(trainkit_installed trainkit_${module})
    set(below)
    set(packages)
    get_target_property(libraries trainkit_${module} LINK_LIBRARIES)
    foreach(library ${libraries})
      string(REGEX REPLACE "^\\$<\\$<BOOL:[^>]+>:([^>]+)>$" "\\1" library "${library}")
      if(library MATCHES "^\\$<BUILD_INTERFACE:|^\\$<\\$<BOOL:>:")
        continue()
      endif()
      string(REGEX REPLACE "^trainkit_" "" used "${library}")
      if(used IN_LIST modules)
        list(APPEND below ${${used}_closure})
        list(APPEND packages ${${used}_packages})
        continue()
      endif()
      set(known FALSE)
      foreach(row ${TRAINKIT_DEPENDENCIES})
        if(row MATCHES "^([^|]*)\\|([^|]*)\\|(.*)$" AND CMAKE_MATCH_1 STREQUAL library)
          set(known TRUE)
          break()
        endif()
      endforeach()
      if(NOT known)
        message(FATAL_ERROR "trainkit: TRAINKIT_DEPENDENCIES of Packaging.cmake lacks ${library}, which ${module} links")
      endif()
      set(for_pkg_config "${CMAKE_MATCH_3}")
      list(APPEND packages "${CMAKE_MATCH_2}")
      if(for_pkg_config MATCHES "^-")
        list(APPEND pc_flags ${for_pkg_config})
      else()
        list(APPEND pc_requires ${for_pkg_config})
      endif()
    endforeach()
    list(APPEND below ${module})
    list(REMOVE_DUPLICATES below)
    list(REMOVE_DUPLICATES packages)
    list(REMOVE_ITEM packages "")
    set(${module}_closure ${below})
    set(${module}_packages ${packages})
    list(JOIN below " " below)
    list(APPEND lines "set(trainkit_${module}_modules ${below})")
    list(JOIN packages "\" \"" packages)
    list(APPEND lines "set(trainkit_${module}_packages \"${packages}\")")
  endforeach()
  list(JOIN modules " " TRAINKIT_ALL_MODULES)
  list(JOIN lines "\n" TRAINKIT_MODULE_LINES)

  include(${PROJECT_SOURCE_DIR}/libtrainkit/cmake/trainkitAbseil.cmake)
  trainkit_abseil_release(TRAINKIT_ABSEIL_RELEASE)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/libtrainkit/cmake/trainkitConfig.cmake.in trainkitConfig.cmake
                                INSTALL_DESTINATION ${DIRECTORY})
  write_basic_package_version_file(trainkitConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  set(files ${CMAKE_CURRENT_BINARY_DIR}/trainkitConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/trainkitConfigVersion.cmake)
  foreach(file trainkitTorch trainkitAbseil trainkitPrecompile)
    list(APPEND files ${PROJECT_SOURCE_DIR}/libtrainkit/cmake/${file}.cmake)
  endforeach()
  install(FILES ${files} DESTINATION ${DIRECTORY})

  # Linkers need a static library before the libraries that it uses.
  list(REVERSE modules)
  list(TRANSFORM modules PREPEND -ltrainkit_)
  list(REMOVE_DUPLICATES pc_flags)
  list(REMOVE_DUPLICATES pc_requires)
  list(JOIN modules " " TRAINKIT_PC_MODULES)
  list(JOIN pc_flags " " TRAINKIT_PC_FLAGS)
  list(JOIN pc_requires " " TRAINKIT_PC_REQUIRES)
  set(definitions)
  foreach(library torch_cpu torch_cuda)
    if(TARGET ${library})
      get_target_property(of_library ${library} INTERFACE_COMPILE_DEFINITIONS)
      list(APPEND definitions ${of_library})
    endif()
  endforeach()
  list(TRANSFORM definitions PREPEND -D)
  list(JOIN definitions " " TRAINKIT_PC_DEFINITIONS)
  set(TRAINKIT_PC_CUDA_LIBRARIES)
  set(TRAINKIT_PC_CUDA_FOLDER)
  if(TRAINKIT_WITH_CUDA)
    get_filename_component(cudart ${CUDA_CUDART} REALPATH)
    string(REGEX MATCH "libcudart\\.so\\.([0-9]+)" cudart "${cudart}")
    set(TRAINKIT_PC_CUDA_FOLDER "\${torch}/../nvidia/cu${CMAKE_MATCH_1}/lib")
    set(TRAINKIT_PC_CUDA_LIBRARIES "-ltorch_cuda -lc10_cuda -L\${cuda_libdir} -Wl,-rpath,\${cuda_libdir} -l:${cudart}")
  endif()
  configure_file(${PROJECT_SOURCE_DIR}/libtrainkit/cmake/trainkit.pc.in trainkit.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/trainkit.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

if(TRAINKIT_INSTALL)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION share/doc/libtrainkit-dev RENAME copyright COMPONENT dev)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION share/doc/trainkit RENAME copyright COMPONENT programs)
endif()
