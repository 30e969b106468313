# Part of trainkit's installed package: the release of the Abseil that a project has found or fetched. Abseil's names in
# object files contain it, so programs cannot link libraries that were compiled with two releases.

# Sets OUT to the release, such as 20220623; empty without Abseil, or if it is between releases.
function(trainkit_abseil_release OUT)
  set(${OUT} "" PARENT_SCOPE)
  if(NOT TARGET absl::config)
    return()
  endif()
  get_target_property(folders absl::config INTERFACE_INCLUDE_DIRECTORIES)
  foreach(folder IN LISTS folders)
    string(REGEX REPLACE "^\\$<BUILD_INTERFACE:(.*)>$" "\\1" folder "${folder}")
    if(EXISTS ${folder}/absl/base/config.h)
      file(STRINGS ${folder}/absl/base/config.h line REGEX "^#define ABSL_LTS_RELEASE_VERSION")
      string(REGEX MATCH "[0-9]+" release "${line}")
      set(${OUT} "${release}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()
