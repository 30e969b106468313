#include "core/machine/late_library.h"

#include <c10/util/Exception.h>
#include <zlib.h>

#include <catch2/catch.hpp>

#include "trainkit/core/error.h"

namespace trainkit::detail {

inline constinit LateLibrary z{"libz.so.1", "zlib", "zlib1g"};
inline constinit LateLibrary carried{"libtrainkit_missing.so.3", "zlib", "zlib1g", "libz.so.1"};
inline constinit LateLibrary not_carried{"libz.so.1", "zlib", "zlib1g", "$ORIGIN/libtrainkit_missing.so.3"};
inline constinit LateLibrary missing{"libtrainkit_missing.so.3", "the missing library 3.2", "libmissing3"};
TRAINKIT_LATE_FUNCTION(z, zlibVersion);
TRAINKIT_LATE_FUNCTION(missing, zlibCompileFlags);

TEST_CASE("A late function is that of its library, which is loaded at the first call", "[core][late_library]") {
  CHECK(std::string(zlibVersion()) == ZLIB_VERSION);
  CHECK(z.load().ok());
  CHECK_THROWS_AS(z.find("no_such_function"), c10::Error);
}

TEST_CASE("The library that a package carries comes before the system's", "[core][late_library]") {
  CHECK(carried.load().ok());
  CHECK(not_carried.load().ok());
}

TEST_CASE("A library that is not installed is an error that names what to install", "[core][late_library]") {
  const absl::Status status = missing.load();
  CHECK(exit_code(status) == ExitCode::kUsage);
  const std::string text = error_text(status);
  CHECK_THAT(text,
             Catch::Contains("error[program.library] libtrainkit_missing.so.3: cannot load") &&
                 Catch::Contains("hint: install the missing library 3.2; on Debian: apt-get install libmissing3"));
  CHECK_THROWS_WITH(zlibCompileFlags(), Catch::Contains("libtrainkit_missing.so.3"));
}

}  // namespace trainkit::detail
