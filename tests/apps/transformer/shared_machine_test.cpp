// A trainer on a machine that other processes use too: its threads, and the monitor's advice.
#include <catch2/catch.hpp>

#include "apps/transformer/text_place.h"
#include "core/machine/other_load.h"
#include "trainkit/core/processors.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

Ended run_with(const Place& place, const std::vector<std::string>& more) {
  return run_to_end("trainkit-transformer", place.flags("run", more), place.dir.path().string());
}

}  // namespace

TEST_CASE("The first lines show LibTorch's threads and the processors, and a bad --threads writes nothing",
          "[apps][threads]") {
  const Place place;
  const std::string processors = std::to_string(available_cpus()) + " processors\n";
  for (const std::string threads : {"1", "3"}) {
    const Ended ended = run_with(place, {"--dry_run", "--threads", threads});
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    CHECK_THAT(ended.output, Catch::Contains(", " + threads + " LibTorch threads on " + processors));
  }
  for (const std::string threads : {"0", "-1", "x", "1.5", "1000000"}) {
    const Ended ended = run_with(place, {"--threads", threads});
    INFO(ended.errors);
    CHECK(ended.code == 2);
    CHECK_THAT(ended.errors, Catch::Contains("--threads: ") && Catch::Contains("(got '" + threads + "'"));
    CHECK(has_only_error(place.dir / "run"));
  }
}

TEST_CASE("A run whose processors other processes use logs the advice busy_machine", "[apps][threads]") {
  const Place place;
  const OtherLoad load(2 * available_cpus());
  const Ended ended = run_with(place, {"--max_time", "5s", "--epochs", "100000", "--monitor"});
  INFO(ended.output << ended.errors);
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.output, Catch::Contains("other processes use ") && Catch::Contains("% of the processors") &&
                               Catch::Contains("stop the others, or reserve processors with taskset"));
}
