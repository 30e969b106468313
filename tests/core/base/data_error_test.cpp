#include "trainkit/core/data_error.h"

#include <catch2/catch.hpp>

#include "trainkit/core/error.h"

using namespace trainkit;

TEST_CASE("An error in data has exit code 4 and names its place", "[core][data_error]") {
  const auto line_of = [](const Place& place) {
    const absl::Status status = data_error("data.csv", place, "not a number", "x", "digits", "look at it");
    CHECK(exit_code(status) == ExitCode::kData);
    CHECK(error_of(status)->hint == "look at it");
    return error_line(status);
  };
  const std::string end = "not a number (got 'x', expected digits)";
  CHECK(line_of({.file = "a.csv", .line = 17, .field = "price"}) == "error[data.csv] a.csv:17: price: " + end);
  CHECK(line_of({.file = "a.bin", .offset = 31}) == "error[data.csv] a.bin@0x1f: " + end);
  CHECK(line_of({.file = "a.bin", .offset = 0}) == "error[data.csv] a.bin@0x0: " + end);
  CHECK(line_of({.file = "a.csv"}) == "error[data.csv] a.csv: " + end);
  CHECK(error_line(data_error("data.csv", {.file = "a.csv"}, "empty file")) == "error[data.csv] a.csv: empty file");
}
