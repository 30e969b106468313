#include "trainkit/config/run_options.h"

#include "test_util.h"

using namespace trainkit;

TEST_CASE("Flags, aliases and spellings reach the variables", "[config][run_options]") {
  RunOptions run;
  ConfigParser parser({.name = "train", .version = "1.0"});
  add_run_flags(parser, run);
  const auto request = parser.parse({"--batch-size=8", "--max_epochs", "3", "--no-drop-last", "--num_workers", "auto",
                                     "--max_time", "1h30m", "--lr", ".5"});
  INFO(error_text(request.status()));
  REQUIRE(request.ok());
  CHECK(*request == Request::kRun);
  CHECK(run.batch_size == IntOrAuto{8});
  CHECK(run.epochs == 3);
  CHECK_FALSE(run.drop_last);
  CHECK(run.num_workers.is_auto());
  CHECK(run.max_time == std::chrono::minutes(90));
  CHECK(run.lr == 0.5);
  CHECK(parser.source("epochs") == "--max_epochs");
}
