// trainkit verify-resume with a real trainer, and with trainers that resume wrongly.
#include <filesystem>
#include <fstream>

#include "apps/program.h"
#include "apps/tool/verified.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

TEST_CASE("verify-resume finds no difference in a trainer that is killed", "[apps][tool][resume]") {
  const TextPlace place;
  const Verified found(place, command({"--kills", "4", "--keep", "--folder", place.dir / "runs", "--vary",
                                       "num_workers=1:2,prefetch_factor=2:4"},
                                      "trainkit-transformer", place.flags({"--batch_size", "4"})));
  INFO(found.output << found.errors);
  REQUIRE(found.code == 0);
  CHECK_THAT(found.output, Catch::StartsWith("4 x SIGKILL in "));
  for (const char* what :
       {"weights", "optimizer", "order of rows", "other state", "logged scalars", "TensorBoard", "files"}) {
    CHECK_THAT(found.row(what), Catch::EndsWith("nowhere"));
  }
  CHECK_THAT(found.row("weights"), Catch::Contains("30 checkpoints"));
  CHECK_THAT(found.row("order of rows"), Catch::Contains("1200 rows"));
  CHECK(fs::exists(place.dir / "runs/interrupted-1"));
}

TEST_CASE("verify-resume finds the differences of a trainer that resumes wrongly", "[apps][tool][resume]") {
  struct Wrong {
    std::string name, before, after, fresh;
    std::vector<std::string> differing;
  };
  const std::vector<Wrong> cases = {
      {"gradients clipped otherwise",
       "more='--grad_clip 0.001 --batch_size 4'",
       "",
       "more='--grad_clip 1 --batch_size 4'",
       {"weights", "optimizer", "logged scalars", "files"}},
      {"other rows",
       "more='--batch_size 6'",
       "",
       "more='--batch_size 4'",
       {"weights", "optimizer", "order of rows", "logged scalars", "files"}},
      {"a step logged twice, an event twice, and a file that is gone",
       "more='--batch_size 4'",
       "tail -n 1 $out/metrics.jsonl > $out/tail; cat $out/tail >> $out/metrics.jsonl; rm $out/tail "
       "$out/results/samples.json; "
       "for f in $out/tensorboard/events*; do cp $f $out/tensorboard/events.out.tfevents.9999999999.x; break; done",
       "more='--batch_size 4'",
       {"logged scalars", "TensorBoard", "files"}},
      {"a result differs",
       "more='--batch_size 4'",
       "echo again >> $out/results/samples.json",
       "more='--batch_size 4'",
       {"files"}},
  };
  for (const Wrong& wrong : cases) {
    const TextPlace place;
    const std::string script = place.script(wrong.before, wrong.after, wrong.fresh);
    const Verified found(place, command({"--kills", "1", "--folder", place.dir / "runs"}, script, place.flags()));
    INFO(wrong.name << "\n" << found.output << found.errors);
    REQUIRE(found.code == 5);
    CHECK_THAT(found.errors, Catch::Contains("trainkit: error[resume.differs] ") &&
                                 Catch::Contains("an interrupted run differs from the uninterrupted one"));
    for (const char* what : {"weights", "optimizer", "order of rows", "logged scalars", "TensorBoard", "files"}) {
      INFO(what);
      const bool differs = std::find(wrong.differing.begin(), wrong.differing.end(), what) != wrong.differing.end();
      CHECK(found.row(what).ends_with("nowhere") == !differs);
      if (differs) CHECK_THAT(found.row(what), Catch::Contains("interrupted-"));
    }
    CHECK(fs::exists(place.dir / "runs/undisturbed"));  // kept for inspection
  }
}

TEST_CASE("Interruptions after the last checkpoint, which test nothing, are not counted", "[apps][tool][resume]") {
  const TextPlace place;
  const std::string slow_to_end = "trap 'sleep 1' EXIT; ";
  const std::string script =
      place.script(slow_to_end + "more='--batch_size 6'", "", slow_to_end + "more='--batch_size 4'");
  const Verified found(place, command({"--kills", "1", "--folder", place.dir / "runs"}, script, place.flags()));
  INFO(found.output << found.errors);
  REQUIRE(found.code == 5);
  CHECK_THAT(found.output, Catch::StartsWith("1 x SIGKILL in "));
  CHECK_FALSE(found.row("weights").ends_with("nowhere"));
}

TEST_CASE("verify-resume reports a trainer's failure with its exit code and its line", "[apps][tool][resume]") {
  const TextPlace place;
  const std::string script =
      place.script("echo 'trainkit: error[data.gone] rows.csv: is not there' >&2; exit 4", "", "more='--batch_size 4'");
  const Verified found(place, command({"--kills", "2"}, script, place.flags()));
  INFO(found.output << found.errors);
  CHECK(found.code == 4);
  CHECK_THAT(found.errors, Catch::Contains("the program ended with exit code 4 (got 'trainkit: error[data.gone] rows"));
}

TEST_CASE("Invalid use of verify-resume is an error with exit code 2 and a hint", "[apps][tool][resume]") {
  const TextPlace place;
  struct Case {
    std::string text;
    std::vector<std::string> words;
  };
  const std::vector<Case> cases = {
      {"program: none given", {}},
      {"--output_dir: is set by verify-resume itself", {"--", "trainkit-transformer", "--output_dir", "a"}},
      {"--resume: is set by verify-resume itself", {"--", "trainkit-transformer", "--resume=latest"}},
      {"no-such-trainer: cannot be started", {"--", "no-such-trainer"}},
      {"--kills", {"--kills", "0", "--", "trainkit-transformer"}},
      {"--signal", {"--signal", "SIGHUP", "--", "trainkit-transformer"}},
      {"--vary: not a flag with values", {"--vary", "num_workers", "--", "trainkit-transformer"}},
      {"--folder: is not an empty, writable folder",
       {"--folder", place.dir.path().string(), "--", "trainkit-transformer"}},
      {"saved no checkpoint before its end",
       command({}, "trainkit-transformer",
               {"--input", place.dir / "text.txt", "--hidden_dim", "16", "--n_layers", "1", "--max_steps", "3"})},
  };
  for (const Case& bad : cases) {
    const Verified found(place, bad.words);
    INFO(bad.text << "\n" << found.errors);
    CHECK(found.code == 2);
    CHECK_THAT(found.errors, Catch::Contains("trainkit: error[") && Catch::Contains(bad.text));
    REQUIRE(fs::exists(place.dir / "text.txt"));  // a folder of the user is never removed
  }
}

TEST_CASE("SIGUSR1 never ends a trainer, whenever it arrives", "[apps][tool][signals]") {
  const TextPlace place;
  const std::string out = place.dir / "run";
  Program program("trainkit-transformer",
                  place.flags({"--batch_size", "4", "--sample_tokens", "400", "--output_dir", out}),
                  place.dir.path().string());
  while (program.output().empty()) {  // main has begun
    REQUIRE_FALSE(program.poll());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::optional<int> code;
  while (!(code = program.poll())) {
    program.kill(SIGUSR1);
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
  INFO(program.errors());
  CHECK(*code == 0);
}
