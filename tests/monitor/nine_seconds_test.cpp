// The nine-second swing described in the guide, at its original pace.
#include "monitor/planted_run.h"
#include "test_util.h"

namespace trainkit {
namespace {

TEST_CASE("A nine-second swing in a real run is found and reported", "[logging][planted]") {
  if (test::environment("TRAINKIT_TEST_FULL") != "1") TRAINKIT_SKIP("TRAINKIT_TEST_FULL is not set: it takes a minute");
  const MonitorReport report = test::swinging_run(std::chrono::seconds(1), 5);
  std::cout << describe(report) << std::endl;
  REQUIRE(report.swing);
  CHECK(report.swing->period == Approx(9).epsilon(0.1));
  CHECK(test::first_row(report) == "swing --num_workers");
}

}  // namespace
}  // namespace trainkit
