# The versions of LibTorch that this tree supports. Defines only a function and variables, since
# tests/lint/torch_versions_test.cmake also uses them.
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/torch-versions.txt trainkit_torch_versions REGEX "^[0-9]")
list(TRANSFORM trainkit_torch_versions REPLACE "^([0-9]+\\.[0-9]+).*" "\\1")
list(GET trainkit_torch_versions 0 TRAINKIT_TORCH_OLDEST)
list(GET trainkit_torch_versions -1 TRAINKIT_TORCH_NEWEST)

# trainkit_check_torch(VERSION DIR): fails for a LibTorch older than the range, and warns of one that is newer. Sets
# TRAINKIT_TORCH_SERIES to its series ("2.11"): libraries and programs run only with LibTorch's series they were built with.
function(trainkit_check_torch VERSION DIR)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" series ${VERSION})
  set(TRAINKIT_TORCH_SERIES ${series} PARENT_SCOPE)
  if(series VERSION_LESS TRAINKIT_TORCH_OLDEST)
    message(FATAL_ERROR "trainkit: LibTorch in ${DIR}: unsuitable version (got ${VERSION}, expected ${TRAINKIT_TORCH_OLDEST} "
      "to ${TRAINKIT_TORCH_NEWEST}). Set Torch_DIR to a newer one, or install one with ./dev setup.")
  elseif(series VERSION_GREATER TRAINKIT_TORCH_NEWEST)
    message(WARNING "trainkit: LibTorch ${VERSION} in ${DIR} is newer than ${TRAINKIT_TORCH_NEWEST}, the newest that this "
      "version of trainkit was tested with. The build continues.")
  endif()
endfunction()
