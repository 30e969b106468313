#pragma once
// Declares the names of Catch2 2, which the tests use, on top of Catch2 3. tests/CMakeLists.txt puts this folder before
// Catch2's own if that is version 3. No other file depends on the version.
#include <catch2/catch_all.hpp>
#include <string>

using Catch::Approx;  // NOLINT(google-global-names-in-headers): as Catch2 2 declares it

namespace Catch {

using namespace Matchers;  // NOLINT(google-build-using-namespace): as Catch2 2 declares it

/// Version 3 calls the matcher of texts ContainsSubstring; its own Contains compares elements of ranges.
inline StringContainsMatcher Contains(const std::string& text) { return ContainsSubstring(text); }

}  // namespace Catch

#ifdef CATCH_CONFIG_MAIN
int main(int argc, char** argv) { return Catch::Session().run(argc, argv); }
#endif
