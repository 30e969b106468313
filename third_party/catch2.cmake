# Finds Catch2, version 2.13 or 3. Target: trainkit_catch2. Tests use the names of version 2, which tests/catch2_v3
# declares on top of version 3.
find_package(Catch2 REQUIRED)
if(Catch2_VERSION VERSION_LESS 2.13)
  message(FATAL_ERROR "Catch2 in ${Catch2_DIR}: unsuitable version (got ${Catch2_VERSION}, expected 2.13 or later)")
endif()
add_library(trainkit_catch2 INTERFACE)
target_link_libraries(trainkit_catch2 INTERFACE Catch2::Catch2)
set(TRAINKIT_CATCH2_FAIL_IF_NONE -w NoTests)  # flags: a name without a test is an error
if(Catch2_VERSION VERSION_GREATER_EQUAL 3)
  set(TRAINKIT_CATCH2_FAIL_IF_NONE -w UnmatchedTestSpec)
  target_include_directories(trainkit_catch2 INTERFACE ${PROJECT_SOURCE_DIR}/tests/catch2_v3)
endif()
