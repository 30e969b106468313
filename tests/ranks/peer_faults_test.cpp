// What the other ranks do when one fails at a named moment: they end soon and report why.
//
// Random moments are in random_kills_test.cpp, ranks that differ in mismatch_test.cpp, the rendezvous in
// rendezvous_test.cpp and strangers_test.cpp, networks in network_test.cpp, restarts in launchers_test.cpp. Not tested:
// a link of 1 kB/s and an MTU black hole (their hangs equal that of a cut link), an unreliable name server
// (names are resolved once), a clock that jumps (every wait uses the monotonic clock), an attacker who speaks the
// store's protocol (the store has no passwords: anyone who reaches the port belongs to the job).
#include "ranks.h"
#include "trainkit/train/checkpoint.h"

using namespace trainkit;
using namespace trainkit::test;
using std::chrono::steady_clock;

namespace {

constexpr int kKilled = 256 + SIGKILL;

struct PeerFault {
  const char* what;
  int64_t world;
  /// <moment>:<number of earlier passes>:<action>; see rank_program.cpp.
  const char* at;
  const char* victims;
  int victim_code;
  int survivor_code;
  /// Expected text in the survivors' errors; "" checks nothing.
  const char* text;
  std::vector<std::string> flags = {};
};

RanksOptions job(const PeerFault& fault, const std::string& folder) {
  RanksOptions options{.world = fault.world, .program = "trainkit-test-rank"};
  options.flags = {"--folder", folder, "--at", fault.at, "--victim", fault.victims};
  options.flags.insert(options.flags.end(), fault.flags.begin(), fault.flags.end());
  return options;
}

bool is_victim(const PeerFault& fault, size_t rank) {
  return std::string_view(fault.victims).find(std::to_string(rank)) != std::string_view::npos;
}

/// Time of the failure, by the clock that all processes share.
steady_clock::time_point harm_time(const TempDir& folder) {
  std::ifstream file(folder / "harm");
  int64_t nanoseconds = 0;
  file >> nanoseconds;
  return steady_clock::time_point(std::chrono::nanoseconds(nanoseconds));
}

void check_ends(const PeerFault& fault, const std::vector<RankEnd>& ends, const TempDir& folder) {
  INFO(fault.what << "\n" << describe(ends));
  double slowest = 0;
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    INFO("rank " << rank);
    REQUIRE(ends[rank].code != RankEnd::kHung);
    CHECK(ends[rank].code == (is_victim(fault, rank) ? fault.victim_code : fault.survivor_code));
    if (is_victim(fault, rank)) continue;
    CHECK_THAT(ends[rank].errors, Catch::Contains(fault.text));
    if (fault.survivor_code == 8) {
      CHECK_THAT(ends[rank].errors, Catch::StartsWith("[rank " + std::to_string(rank) + "] trainkit: error[dist."));
    }
    slowest = std::max(slowest, std::chrono::duration<double>(ends[rank].at - harm_time(folder)).count());
  }
  if (fault.survivor_code == 8)
    std::cout << fault.what << ": survivors ended " << slowest << " s after it" << std::endl;
}

/// Runs the ranks of a job, with more flags, and checks how they end.
void check_fault(PeerFault fault, const std::vector<std::string>& flags, const TempDir& folder) {
  fault.flags.insert(fault.flags.end(), flags.begin(), flags.end());
  RankJob ranks(job(fault, folder.path().string()), folder.path().string());
  check_ends(fault, ranks.wait(), folder);
}

/// Waits for the end of `survivor`, then ends the stopped rank.
RankEnd end_of_survivor(RankJob& ranks, int64_t survivor, int64_t stopped) {
  RankEnd end;
  const auto started = steady_clock::now();
  while (true) {
    if (const auto code = ranks[survivor].poll()) {
      end = {*code, steady_clock::now(), "", ranks[survivor].errors()};
      break;
    }
    REQUIRE(steady_clock::now() - started < std::chrono::seconds(90));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  ranks[stopped].kill(SIGKILL);
  ranks[stopped].wait();
  return end;
}

/// The last checkpoint is that of step 10, and complete.
void check_checkpoint(const TempDir& folder) {
  const auto last = resolve_checkpoint("latest", folder / "run");
  REQUIRE(last.ok());
  CHECK(last->step == 10);
  CHECK(verify_checkpoint(*last).ok());
}

}  // namespace

TEST_CASE("A rank that dies or fails at any moment ends the others, who name it", "[ranks][faults]") {
  const std::vector<std::string> brief = {"--timeout", "3000"};
  const std::vector<PeerFault> faults = {
      {"killed before the store", 2, "start:0:kill", "1", kKilled, 8, "rank 1", brief},
      {"killed before the first exchange", 2, "joined:0:kill", "1", kKilled, 8, "rank 1 lost"},
      {"killed before the broadcast of the weights", 2, "model:0:kill", "1", kKilled, 8, "rank 1 lost"},
      {"killed in forward", 2, "forward:13:kill", "1", kKilled, 8, "rank 1 lost at step 8"},
      {"killed in backward, where gradients are reduced", 2, "backward:13:kill", "1", kKilled, 8, "rank 1 lost"},
      {"killed in the optimizer step", 2, "step:9:kill", "1", kKilled, 8, "rank 1 lost"},
      {"the first rank killed while saving", 2, "save:1:kill", "0", kKilled, 8, "rank 0 lost"},
      {"another rank killed while the first saves", 2, "save:1:kill", "1", kKilled, 8, "rank 1 lost"},
      {"killed in evaluation", 2, "evaluation:4:kill", "1", kKilled, 8, "rank 1 lost"},
      {"killed after the last exchange", 2, "end:0:kill", "1", kKilled, 0, ""},
      {"SIGSEGV", 2, "forward:13:segv", "1", 256 + SIGSEGV, 8, "rank 1 lost"},
      {"SIGABRT", 2, "forward:13:abort", "1", 256 + SIGABRT, 8, "rank 1 lost"},
      {"exit(0) too early", 2, "forward:13:exit", "1", 0, 8, "rank 1 lost"},
      {"the data set throws", 2, "read:40:throw", "1", 4, 8, "the fault that the test asked for"},
      {"the loss throws", 2, "forward:13:throw", "1", 2, 8, "rank 1"},
      {"the loss throws on the first rank", 2, "forward:13:throw", "0", 2, 8, "rank 0"},
      {"backward throws", 2, "backward:13:throw", "1", 2, 8, "rank 1"},
      {"out of memory with one row, too", 2, "forward:13:oom", "1", 7, 8, "rank 1"},
      {"out of memory once: all take the step again", 2, "forward:13:oom_once", "1", 0, 0, ""},
      {"evaluation throws", 2, "evaluation:4:throw", "1", 2, 8, "rank 1 failed in the evaluation"},
      {"the holder of the store killed", 2, "forward:13:kill", "0", kKilled, 8, "rank 0 lost"},
      {"one of four killed", 4, "backward:13:kill", "2", kKilled, 8, "rank 2 lost"},
      {"three of four killed", 4, "forward:13:kill", "123", kKilled, 8, "lost"},
      {"not a number on one rank: all see it", 2, "forward:13:nan", "1", 9, 9, "gradients: are not finite at step 8"},
  };
  const auto is_exchange = [](const PeerFault& fault) {
    const std::string at = fault.at;
    return at.starts_with("joined") || at.starts_with("backward") || at.starts_with("evaluation");
  };
  for (const char* shared_memory : {"1", "0"}) {
    for (const PeerFault& fault : faults) {
      if (shared_memory[0] == '0' && !is_full() && !is_exchange(fault)) continue;
      INFO("--shared_memory " << shared_memory);
      check_fault(fault, {"--shared_memory", shared_memory}, TempDir());
    }
  }
}

TEST_CASE("A rank that dies or fails while the ranks divide the training state ends the others, who name it",
          "[ranks][faults][sharding]") {
  const std::vector<PeerFault> faults = {
      {"killed in backward, before a reduce-scatter", 2, "backward:13:kill", "1", kKilled, 8, "rank 1 lost at step 8"},
      {"killed in the optimizer step, before an all-gather", 2, "step:9:kill", "1", kKilled, 8, "rank 1 lost"},
      {"the first rank killed while saving", 2, "save:1:kill", "0", kKilled, 8, "rank 0 lost"},
      {"another rank killed while its part is saved", 2, "save:1:kill", "1", kKilled, 8, "rank 1 lost"},
      {"killed in evaluation", 2, "evaluation:4:kill", "1", kKilled, 8, "rank 1 lost"},
      {"the loss throws in the first micro-batch", 2, "forward:13:throw", "1", 2, 8, "rank 1"},
      {"the loss throws in the last micro-batch", 2, "forward:14:throw", "1", 2, 8, "rank 1"},
      {"backward throws", 2, "backward:13:throw", "0", 2, 8, "rank 0"},
      {"out of memory with one row, too", 2, "forward:13:oom", "1", 7, 8, "rank 1"},
      {"out of memory in the first micro-batch: all take the step again", 2, "forward:13:oom_once", "1", 0, 0, ""},
      {"out of memory in the last micro-batch: all take the step again", 2, "forward:14:oom_once", "0", 0, 0, ""},
      {"out of memory in a step with fewer micro-batches", 2, "forward:12:oom_once", "1", 0, 0, ""},
      {"one of four killed", 4, "backward:13:kill", "2", kKilled, 8, "rank 2 lost"},
      {"not a number on one rank: all see it", 2, "forward:13:nan", "1", 9, 9, "gradients: are not finite at step 8"},
  };
  for (const std::string shard : {"gradients", "optimizer"}) {
    for (const PeerFault& fault : faults) {
      if (shard == "optimizer" && !is_full() && !std::string_view(fault.at).starts_with("forward:13")) continue;
      INFO("--shard " << shard);
      const TempDir folder;
      check_fault(fault, {"--shard", shard}, folder);
      if (std::string_view(fault.at).starts_with("save")) check_checkpoint(folder);  // the one before
    }
  }
}

TEST_CASE("A rank that dies or fails while all ranks write a checkpoint ends the others, who name it",
          "[ranks][faults][sharding]") {
  // In a save the first rank writes 28 times and the second one 3 times; the faults are in the second save, of step 20.
  const char* full = "could not save the checkpoint of step 20: error[storage.full]";
  const std::vector<PeerFault> faults = {
      {"killed before it writes its first part", 2, "write:3:kill", "1", kKilled, 8, "rank 1 lost"},
      {"killed between two parts", 2, "write:4:kill", "1", kKilled, 8, "rank 1 lost"},
      {"killed before it flushes its parts", 2, "sync:2:kill", "1", kKilled, 8, "rank 1 lost"},
      {"the first rank killed before it creates a file", 2, "write:28:kill", "0", kKilled, 8, "rank 0 lost"},
      {"the first rank killed while it writes its parts", 2, "write:40:kill", "0", kKilled, 8, "rank 0 lost"},
      {"the first rank killed before the manifest", 2, "write:54:kill", "0", kKilled, 8, "rank 0 lost"},
      {"the first rank killed before it updates latest", 2, "write:55:kill", "0", kKilled, 8, "rank 0 lost"},
      {"one of four killed while it writes", 4, "write:3:kill", "3", kKilled, 8, "rank 3 lost"},
      {"a full disk on one rank", 2, "write:4:full", "1", 6, 8, full},
      {"a full disk on the first rank", 2, "write:40:full", "0", 6, 8, full},
  };
  for (PeerFault fault : faults) {
    INFO(fault.what);
    const TempDir folder;
    fault.flags = {"--shard", "optimizer"};
    const auto ends = RankJob(job(fault, folder.path().string()), folder.path().string()).wait();
    check_ends(fault, ends, folder);
    check_checkpoint(folder);
    if (fault.victim_code == 6) {
      CHECK_THAT(ends[static_cast<size_t>(fault.victims[0] - '0')].errors, Catch::Contains("error[ckpt.space]"));
    }
    // The first rank removes the unfinished checkpoint if it survives.
    if (fault.victims[0] == '0' && fault.victim_code == kKilled) continue;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "run/checkpoints")) {
      CHECK_FALSE(entry.path().filename().string().starts_with(".tmp-"));
    }
  }
}

TEST_CASE("A rank that is stopped while all ranks write a checkpoint ends the others at the timeout",
          "[ranks][faults][sharding]") {
  const PeerFault fault{
      "stopped while it writes", 2, "write:4:stop", "1", kKilled, 8, "", {"--timeout", "2000", "--shard", "optimizer"}};
  const TempDir folder;
  RankJob ranks(job(fault, folder.path().string()), folder.path().string());
  const RankEnd end = end_of_survivor(ranks, 0, 1);
  CHECK(end.code == 8);
  CHECK_THAT(end.errors, Catch::Contains("rank 1 lost"));
  check_checkpoint(folder);
}

TEST_CASE("Ranks continue after a save that failed on one of them, and the next save succeeds",
          "[ranks][faults][sharding]") {
  const TempDir folder;
  const PeerFault fault{"a full disk once", 2, "write:4:full_once", "1", 0, 0, ""};
  check_fault(fault, {"--shard", "optimizer", "--continue", "1"}, folder);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "run/checkpoints")) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"latest", "step-00000010", "step-00000030", "step-00000040"});
  CHECK(verify_checkpoint(resolve_checkpoint("latest", folder / "run").value()).ok());
  CHECK_THAT(read_text(folder / "printed.0"),
             Catch::Contains("rank 1 could not save the checkpoint of step 20: error[storage.full]"));
}

TEST_CASE("Ranks without a common file system save through the first one", "[ranks][sharding]") {
  for (const bool is_shared : {true, false}) {
    const TempDir folder;
    std::filesystem::create_directory(folder / "run");
    RanksOptions options{.world = 2, .program = "trainkit-test-rank"};
    options.flags = {"--folder", folder.path().string(), "--shard", "optimizer", "--steps", "10"};
    options.wrapper = [&](int64_t rank) -> std::vector<std::string> {
      if (rank == 0 || is_shared) return {};
      const std::string mount = "mount -t tmpfs none '" + (folder / "run") + "' || exit 99; exec \"$0\" \"$@\"";
      return {"/usr/bin/unshare", "-m", "/bin/sh", "-c", mount};
    };
    // The second rank writes only where the ranks have a common file system.
    options.more = [](int64_t) { return std::vector<std::string>{"--at", "write:0:mark", "--victim", "1"}; };
    const auto ends = RankJob(options, folder.path().string()).wait();
    if (ends[1].code == 99 || ends[1].code == 1) TRAINKIT_SKIP("this user cannot mount a tmpfs");
    require_done(ends);
    CHECK(std::filesystem::exists(folder / "harm") == is_shared);
    const std::string printed = std::filesystem::exists(folder / "printed.0") ? read_text(folder / "printed.0") : "";
    CHECK((printed.find("which therefore gathers the state of all ranks and writes alone") == std::string::npos) ==
          is_shared);
    check_checkpoint(folder);
  }
}

TEST_CASE("A rank killed while another number of ranks resumes leaves the checkpoint whole",
          "[ranks][faults][sharding]") {
  const TempDir folder;
  RanksOptions four{.world = 4, .program = "trainkit-test-rank"};
  four.flags = {"--folder", folder.path().string(), "--shard", "optimizer", "--accum", "1", "--steps", "10", "--batch",
                "2"};
  for (const RankEnd& end : RankJob(four, folder.path().string()).wait()) REQUIRE(end.code == 0);
  for (const char* at : {"model:0:kill", "forward:0:kill"}) {
    check_fault({at, 2, at, "1", kKilled, 8, "rank 1 lost"},
                {"--shard", "optimizer", "--accum", "1", "--steps", "20", "--batch", "4", "--resume", "latest"},
                folder);
    check_checkpoint(folder);
  }
}

TEST_CASE("A rank that hangs ends the others at the timeout, and they report its number and the operation",
          "[ranks][faults]") {
  for (const char* victim : {"1", "0"}) {
    const PeerFault fault{"stopped", 2, "forward:13:stop", victim, kKilled, 8, "", {"--timeout", "2000"}};
    const TempDir folder;
    RankJob ranks(job(fault, folder.path().string()), folder.path().string());
    const int64_t stopped = victim[0] - '0';
    const RankEnd end = end_of_survivor(ranks, 1 - stopped, stopped);
    INFO(end.errors);
    CHECK(end.code == 8);
    CHECK_THAT(end.errors, Catch::Contains("rank " + std::string(victim)) && Catch::Contains("at step 8 in "));
    const double seconds = std::chrono::duration<double>(end.at - harm_time(folder)).count();
    CHECK(seconds >= 1.9);
    std::cout << "rank " << victim << " stopped: the other ended after " << seconds << " s of a timeout of 2 s\n";
  }
}

TEST_CASE("The others wait for a rank that pauses for less than the timeout", "[ranks][faults]") {
  const PeerFault fault{"stopped for a second", 2, "forward:13:stop", "1", 0, 0, ""};
  const TempDir folder;
  RankJob ranks(job(fault, folder.path().string()), folder.path().string());
  while (!std::filesystem::exists(folder / "harm")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::this_thread::sleep_for(std::chrono::seconds(1));
  ranks[1].kill(SIGCONT);
  check_ends(fault, ranks.wait(), folder);
}

TEST_CASE("The others wait for a rank that is much slower", "[ranks][faults]") {
  const PeerFault fault{"slow", 2, "forward:0:slow", "1", 0, 0, "", {"--steps", "20"}};
  const TempDir folder;
  RankJob ranks(job(fault, folder.path().string()), folder.path().string());
  check_ends(fault, ranks.wait(), folder);
}

TEST_CASE("Ranks that skip unreadable rows, including whole batches, stay in step", "[ranks][faults]") {
  // One row per batch: a third of the batches are lost, some on one rank only, some on both.
  const TempDir folder;
  RanksOptions options{.world = 2, .program = "trainkit-test-rank"};
  options.flags = {"--folder", folder.path().string(), "--batch", "1", "--accum", "1", "--bad", "35", "--steps",
                   "120",      "--save_every",         "50"};
  const auto ends = RankJob(options, folder.path().string()).wait();
  INFO(describe(ends));
  for (const RankEnd& end : ends) {
    CHECK(end.code == 0);
    CHECK_THAT(end.output, Catch::StartsWith("step 120 "));
  }
  CHECK(read_text(folder / "losses.0") == read_text(folder / "losses.1"));
}

TEST_CASE("A signal to one rank stops all after the same step, with one checkpoint", "[ranks][faults]") {
  struct Signal {
    const char* at;
    const char* victim;
    int code;
  };
  for (const auto& [at, victim, code] :
       {Signal{"forward:13:term", "0", 143}, {"forward:13:term", "3", 143}, {"forward:13:int", "1", 130}}) {
    const PeerFault fault{"signal", 4, at, victim, code, code, ""};
    const TempDir folder;
    RankJob ranks(job(fault, folder.path().string()), folder.path().string());
    const auto ends = ranks.wait();
    check_ends(fault, ends, folder);
    for (const RankEnd& end : ends) CHECK_THAT(end.output, Catch::StartsWith("step 8 "));
    CHECK(read_text(folder / "run/checkpoints/latest") == "step-00000008\n");
  }
}

TEST_CASE("SIGTERM to every rank stops all after the same step", "[ranks][faults]") {
  const TempDir folder;
  RanksOptions options{.world = 4, .program = "trainkit-test-rank"};
  options.flags = {"--folder", folder.path().string(), "--steps", "1000000"};
  RankJob ranks(options, folder.path().string());
  while (read_text(folder / "rows.3").empty()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  for (int64_t rank = 0; rank < 4; ++rank) ranks[rank].kill(SIGTERM);
  const auto ends = ranks.wait();
  INFO(describe(ends));
  for (const RankEnd& end : ends) {
    CHECK(end.code == 143);
    CHECK(end.output == ends[0].output);
  }
}

TEST_CASE("A rank killed before the first collective ends the others, also with lazily opened connections",
          "[ranks][faults]") {
  const PeerFault fault{
      "killed before the first collective, TORCH_GLOO_LAZY_INIT=1", 2, "model:0:kill", "1", kKilled, 8, "rank 1"};
  const TempDir folder;
  RanksOptions options = job(fault, folder.path().string());
  options.environment = [](int64_t) { return std::vector<std::string>{"TORCH_GLOO_LAZY_INIT=1"}; };
  RankJob ranks(options, folder.path().string());
  check_ends(fault, ranks.wait(), folder);
}

TEST_CASE("A rank at its limit of open files ends, and so do the others", "[ranks][faults]") {
  for (const char* limit : {"20", "72"}) {
    const TempDir folder;
    RanksOptions options{.world = 2, .program = "trainkit-test-rank"};
    options.flags = {"--folder", folder.path().string(), "--timeout", "5000", "--steps", "20", "--save_every", "0"};
    options.wrapper = [&](int64_t rank) -> std::vector<std::string> {
      if (rank == 0) return {};
      return {"/bin/sh", "-c", std::string("ulimit -n ") + limit + "; exec \"$0\" \"$@\""};
    };
    const auto ends = RankJob(options, folder.path().string()).wait();
    INFO("at most " << limit << " files\n" << describe(ends));
    for (const RankEnd& end : ends) CHECK(end.code != RankEnd::kHung);
    CHECK((ends[0].code == 0) == (ends[1].code == 0));
  }
}

TEST_CASE("SIGUSR1 to one rank saves a checkpoint and the run continues", "[ranks][faults]") {
  const PeerFault fault{"SIGUSR1", 2, "forward:13:usr1", "1", 0, 0, "", {"--save_every", "1000"}};
  const TempDir folder;
  RankJob ranks(job(fault, folder.path().string()), folder.path().string());
  check_ends(fault, ranks.wait(), folder);
  CHECK(std::filesystem::exists(folder / "run/checkpoints/step-00000008"));
  CHECK(std::filesystem::exists(folder / "run/checkpoints/step-00000040"));
}
