// trainkit-transformer under the real torchrun and the real mpirun.
#include "apps/transformer/text_place.h"
#include "ranks.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

std::string quoted(const std::vector<std::string>& arguments) {
  std::string line;
  for (const std::string& argument : arguments) line += " '" + argument + "'";
  return line;
}

/// Runs `script` in a shell without this process's launcher variables.
RankEnd shell(const TempDir& folder, const std::string& script) {
  Program program("/bin/sh", {"-c", script}, folder.path().string(), {.environment = base_environment()});
  RankEnd end;
  end.code = program.wait();
  end.output = program.output();
  end.errors = program.errors();
  return end;
}

const std::vector<std::string> kRun = {"--max_steps", "60", "--save_every", "10", "--eval_every", "30"};

}  // namespace

TEST_CASE("A run that is killed under torchrun restarts, resumes and ends with the weights of an uninterrupted run",
          "[ranks][launchers]") {
  if (python().empty()) TRAINKIT_SKIP("TRAINKIT_PYTHON is not set");
  const Place place;
  const std::string program = std::string(TRAINKIT_BIN_DIR) + "/trainkit-transformer";
  const auto flags = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.end(), kRun.begin(), kRun.end());
    return quoted(place.flags(name, more));
  };
  RanksOptions whole{.world = 2, .flags = place.flags("whole", kRun)};
  for (const RankEnd& end : RankJob(whole, place.dir.path().string()).wait()) REQUIRE(end.code == 0);

  // The first attempt loses rank 1 after the first checkpoint; the second resumes from it.
  const std::string latest = place.dir / "run" + "/checkpoints/latest";
  std::ofstream(place.dir / "worker.sh") << "if [ \"$TORCHELASTIC_RESTART_COUNT\" = 0 ]; then\n"
                                         << "  if [ \"$RANK\" = 1 ]; then\n    (while [ ! -e " << latest
                                         << " ]; do sleep 0.01; done; kill -9 $$) &\n  fi\n"
                                         << "  exec " << program << flags("run", {}) << "\nfi\n"
                                         << "exec " << program << flags("run", {"--resume", "latest"}) << "\n";
  const RankEnd end =
      shell(place.dir, "exec " + python() +
                           " -m torch.distributed.run --standalone --nproc_per_node 2 --max_restarts 2 --no-python"
                           " /bin/sh '" +
                           (place.dir / "worker.sh") + "'");
  INFO(end.errors);
  REQUIRE(end.code == 0);
  CHECK_THAT(end.errors, Catch::Contains("Signal 9 (SIGKILL)") || Catch::Contains("-9"));
  CHECK(checkpoint_bytes(place.dir / "run", "00000060") == checkpoint_bytes(place.dir / "whole", "00000060"));
  CHECK(losses(place.dir / "run") == losses(place.dir / "whole"));
}

TEST_CASE("The error of a rank is in torchrun's summary", "[ranks][launchers]") {
  if (python().empty()) TRAINKIT_SKIP("TRAINKIT_PYTHON is not set");
  const Place place;
  const RankEnd end =
      shell(place.dir, "exec " + python() + " -m torch.distributed.run --standalone --nproc_per_node 2 --no-python " +
                           TRAINKIT_BIN_DIR + "/trainkit-transformer" +
                           quoted(place.flags("run", {"--init_from", place.dir / "no-weights.safetensors"})));
  INFO(end.errors);
  CHECK(end.code != 0);
  CHECK_THAT(end.errors, Catch::Contains("ChildFailedError") && Catch::Contains("no-weights.safetensors"));
}

TEST_CASE("Ranks of mpirun train as those of any launcher", "[ranks][launchers]") {
  if (std::system("command -v mpirun > /dev/null") != 0) TRAINKIT_SKIP("there is no mpirun (apt install openmpi-bin)");
  const Place place;
  RanksOptions whole{.world = 2, .flags = place.flags("whole", kRun)};
  for (const RankEnd& end : RankJob(whole, place.dir.path().string()).wait()) REQUIRE(end.code == 0);
  const RankEnd end =
      shell(place.dir, "exec mpirun --allow-run-as-root --oversubscribe -np 2 " + std::string(TRAINKIT_BIN_DIR) +
                           "/trainkit-transformer" + quoted(place.flags("run", kRun)));
  INFO(end.errors);
  REQUIRE(end.code == 0);
  CHECK_THAT(end.output, Catch::Contains("strategy   ddp over 2 ranks"));
  CHECK(checkpoint_bytes(place.dir / "run", "00000060") == checkpoint_bytes(place.dir / "whole", "00000060"));
}
