// The examples that train survive kill -9 at any step: the weights at the end are those of an uninterrupted run, bit
// for bit. TRAINKIT_TEST_FULL kills each of them many times.
#include <random>

#include "examples/example_runs.h"
#include "ranks/ranks.h"
#include "temp_dir.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;
using Clock = std::chrono::steady_clock;

namespace {

struct Job {
  std::string program;
  std::vector<std::string> arguments;  // before the folder
  int64_t steps;
};

/// One thread: waiting threads of several programs would only take the processor from each other.
Program start(const Job& job, const std::string& folder, const std::string& output) {
  std::vector<std::string> arguments = job.arguments;
  arguments.push_back(folder);
  return Program(job.program, arguments, output, {.environment = base_environment()});
}

/// Starts `job` in `folder`, and kills it after `delay` from the moment when `may_die` holds. Returns whether it was
/// killed before its end.
template <class Condition>
bool killed(const Job& job, const std::string& folder, const std::string& output, Condition may_die,
            std::chrono::microseconds delay) {
  Program program = start(job, folder, output);
  while (!may_die()) {
    if (const auto code = program.poll()) {
      INFO(program.errors());
      REQUIRE(*code == 0);
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::this_thread::sleep_for(delay);
  program.kill(SIGKILL);
  return program.wait() == 256 + SIGKILL;
}

Ended run(const Job& job, const std::string& folder, const std::string& output) {
  Program program = start(job, folder, output);
  const int code = program.wait();
  Ended ended{code, program.output(), program.errors()};
  INFO(job.program << "\n" << ended.output << ended.errors);
  REQUIRE(ended.code == 0);
  return ended;
}

/// Runs `job` uninterrupted, and a second time with `kills` kills, and compares the last checkpoints.
void check_kills(const Job& job, int kills) {
  const TempDir dir;
  const std::string output = dir.path().string();
  const auto start = Clock::now();
  CHECK(steps_of_start(run(job, dir / "whole", output).output) == job.steps);
  const std::chrono::duration<double, std::micro> whole = Clock::now() - start;
  const std::string expected = final_bytes(dir / "whole");
  REQUIRE(last_saved(dir / "whole") == job.steps);

  std::mt19937_64 random(std::random_device{}());
  int done = 0, runs = 0;
  for (; done < kills; ++runs) {
    const std::string folder = dir / ("killed" + std::to_string(runs));
    REQUIRE(runs < 20 + kills);
    // First after a checkpoint, so that there is something to resume; then anywhere, also while it starts.
    const auto has_checkpoint = [&] { return last_saved(folder) > 0; };
    const std::chrono::microseconds first(static_cast<int64_t>(whole.count() / 4));
    if (!killed(job, folder, output, has_checkpoint, first * (random() % 1000) / 1000)) continue;
    for (++done; done < kills; ++done) {
      const std::chrono::microseconds any(static_cast<int64_t>(whole.count()));
      if (!killed(
              job, folder, output, [] { return true; }, any * (random() % 1000) / 1000))
        break;
    }
    const int64_t saved = last_saved(folder);
    REQUIRE(saved > 0);
    const Ended last = run(job, folder, output);
    CHECK(steps_of_start(last.output) <= job.steps - saved);
    CHECK(final_bytes(folder) == expected);
    std::filesystem::remove_all(folder);
  }
  std::cout << job.program << ": " << done << " kills in " << runs << " runs, no difference" << std::endl;
}

int kills() { return is_full() ? 50 : 1; }

}  // namespace

TEST_CASE("The GAN survives kills with the bits of an uninterrupted run", "[examples][kills]") {
  check_kills({.program = "example_gan", .arguments = {is_full() ? "300" : "120"}, .steps = is_full() ? 300 : 120},
              kills());
}

TEST_CASE("Fine-tuning survives kills, also before the encoder is trained", "[examples][kills]") {
  check_kills({.program = "example_fine_tune", .arguments = {}, .steps = 480}, kills());
}

TEST_CASE("The simulation that trains survives kills with its world", "[examples][kills]") {
  check_kills({.program = "example_online", .arguments = {}, .steps = 600}, kills());
}
