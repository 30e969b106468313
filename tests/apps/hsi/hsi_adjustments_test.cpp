// Settings that do not fit the number of rows or the evaluation of a run.
#include <catch2/catch.hpp>
#include <regex>

#include "apps/hsi/hsi_place.h"

using namespace trainkit;
using namespace trainkit::test;
using Catch::Contains;

namespace {

Ended run(const HsiPlace& place, std::vector<std::string> more) {
  return run_to_end("trainkit-hsi", place.flags("run", std::move(more)), place.dir.path().string());
}

int64_t training_rows(const HsiPlace& place) {
  const std::string plan = run(place, {"--dry_run"}).output;
  std::smatch found;
  REQUIRE(std::regex_search(plan, found, std::regex("([0-9]+) rows, ")));
  return std::stoll(found[1]);
}

}  // namespace

TEST_CASE("A last batch of one row that BatchNorm cannot normalise is refused before the first step", "[apps][hsi]") {
  const HsiPlace place;
  const std::string batch = std::to_string(training_rows(place) - 1);
  const Ended refused = run(place, {"--batch_size", batch, "--no-drop_last"});
  INFO(refused.output << refused.errors);
  CHECK(refused.code == 4);
  CHECK_THAT(refused.errors, Contains("error[data.last_batch]") && Contains("--no-drop_last --batch_size " + batch));
  CHECK(refused.output.find("step 1") == std::string::npos);
  CHECK(run(place, {"--batch_size", batch, "--drop_last", "--epochs", "1"}).code == 0);
}

TEST_CASE("Fewer rows than one batch are one smaller batch, with a warning", "[apps][hsi]") {
  const HsiPlace place;
  const std::string batch = std::to_string(training_rows(place) + 1);
  const Ended ended = run(place, {"--batch_size", batch, "--epochs", "1"});
  INFO(ended.output << ended.errors);
  CHECK(ended.code == 0);
  CHECK_THAT(ended.output, Contains("warning") && Contains("are fewer than one batch of " + batch));
}

TEST_CASE("Flags that need a validation warn if there is none", "[apps][hsi]") {
  const HsiPlace place;
  const Ended ended =
      run(place, {"--eval_every", "0", "--early_stopping", "3", "--scheduler", "plateau", "--epochs", "1"});
  INFO(ended.output << ended.errors);
  CHECK(ended.code == 0);
  CHECK_THAT(ended.output, Contains("--early_stopping has no effect") && Contains("--scheduler has no effect"));
}
