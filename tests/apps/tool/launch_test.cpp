// trainkit launch as a user runs it, with real processes.
#include "trainkit/launch.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <regex>

#include "apps/program.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

/// Runs `trainkit launch` with a shell script as the program; $1 of the script is the folder.
struct Launched {
  Launched(int ranks, const std::string& script, std::vector<std::string> flags = {}) {
    std::vector<std::string> words = {"launch", "--nproc_per_node", std::to_string(ranks)};
    words.insert(words.end(), flags.begin(), flags.end());
    for (const std::string& word : {std::string("--"), std::string("/bin/bash"), std::string("-c"), script,
                                    std::string("script"), dir.path().string()})
      words.push_back(word);
    program = std::make_unique<Program>("trainkit", words, dir.path().string());
  }
  int wait() { return program->wait(); }
  /// Waits for a file that the script writes; returns false at the timeout.
  bool wait_for(const std::string& name, std::chrono::seconds patience = 60s) const {
    const auto end = std::chrono::steady_clock::now() + patience;
    while (!fs::exists(dir / name)) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(5ms);
    }
    return true;
  }
  std::string file(const std::string& name) const { return read_text(dir / name); }

  TempDir dir;
  std::unique_ptr<Program> program;
};

/// The state of a process ('R', 'S', 'Z', ...); 0 if it does not exist.
char state_of(const std::string& pid) {
  const std::string stat = read_text("/proc/" + pid + "/stat");
  const size_t end = stat.rfind(") ");
  return end == std::string::npos ? '\0' : stat[end + 2];
}

bool gone(const std::string& pid) {
  const char state = state_of(pid);
  return state == '\0' || state == 'Z';  // a zombie not yet reaped by its new parent
}

bool soon(const std::function<bool()>& what) {
  for (int i = 0; i < 2000; ++i) {
    if (what()) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

}  // namespace

TEST_CASE("Each rank gets its position, and the rendezvous is on the loopback interface") {
  Launched launched(3,
                    "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR; "
                    "echo $MASTER_PORT > $1/port$RANK");
  CHECK(launched.wait() == 0);
  CHECK(sorted_lines(launched.program->output()) == std::vector<std::string>{"[rank 0] 0/3 0/3 0 127.0.0.1",
                                                                             "[rank 1] 1/3 1/3 0 127.0.0.1",
                                                                             "[rank 2] 2/3 2/3 0 127.0.0.1"});
  CHECK(std::stoi(launched.file("port0")) > 1024);
  CHECK(launched.file("port0") == launched.file("port2"));
}

TEST_CASE("Ranks of the second machine continue the numbering, and all machines get the first one's address") {
  Launched launched(2, "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR:$MASTER_PORT",
                    {"--nnodes", "3", "--node_rank", "1", "--master_addr", "localhost", "--master_port", "29511"});
  CHECK(launched.wait() == 0);
  CHECK(sorted_lines(launched.program->output()) ==
        std::vector<std::string>{"[rank 2] 2/6 0/2 1 localhost:29511", "[rank 3] 3/6 1/2 1 localhost:29511"});
}

TEST_CASE("Several machines need a rendezvous address, and the machine's number must be in range") {
  CHECK(Launched(1, "true", {"--nnodes", "2", "--master_port", "29500"}).wait() == 2);
  CHECK(Launched(1, "true", {"--nnodes", "2", "--master_addr", "localhost"}).wait() == 2);
  CHECK(Launched(1, "true", {"--nnodes", "2", "--node_rank", "2"}).wait() == 2);
}

TEST_CASE("The CPU cores are shared among the ranks unless the user sets the threads") {
  using tool::rank_environment;
  CHECK(rank_environment({.nproc_per_node = 3}, 0, 8, {}).at("OMP_NUM_THREADS") == "2");
  CHECK(rank_environment({.nproc_per_node = 9}, 0, 8, {}).at("OMP_NUM_THREADS") == "1");
  CHECK(rank_environment({.nproc_per_node = 3}, 0, 8, {{"OMP_NUM_THREADS", "5"}}).at("OMP_NUM_THREADS") == "5");
}

TEST_CASE("The variables of an outer torchrun do not reach the ranks") {
  const auto variables =
      tool::rank_environment({}, 0, 1, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"RANK", "7"}, {"HOME", "/home"}});
  CHECK_FALSE(variables.contains("TORCHELASTIC_USE_AGENT_STORE"));
  CHECK(variables.at("RANK") == "0");
  CHECK(variables.at("HOME") == "/home");
  CHECK_FALSE(variables.at("TRAINKIT_LAUNCH_ID").empty());
}

TEST_CASE("Lines of ranks that write concurrently are never mixed") {
  // 3 ranks write each line in pieces, on both streams.
  Launched launched(3,
                    "for i in {1..300}; do for p in a b c d e f; do printf '%s%s' $p $RANK; done; echo; "
                    "printf '%s' x$RANK >&2; echo y >&2; done");
  CHECK(launched.wait() == 0);
  const auto out = sorted_lines(launched.program->output()), err = sorted_lines(launched.program->errors());
  CHECK(out.size() == 900);
  CHECK(err.size() == 900);
  for (const std::string& line : out) {
    const std::string r = line.substr(6, 1);
    const std::string expected = "[rank " + r + "] a" + r + "b" + r + "c" + r + "d" + r + "e" + r + "f" + r;
    if (line != expected) CHECK(line == expected);
  }
  for (const std::string& line : err) {
    const std::string expected = "[rank " + line.substr(6, 1) + "] x" + line.substr(6, 1) + "y";
    if (line != expected) CHECK(line == expected);
  }
}

TEST_CASE("Output to a file has no colours") {
  Launched launched(2, "echo hello");
  CHECK(launched.wait() == 0);
  CHECK(launched.program->output().find('\x1b') == std::string::npos);
}

TEST_CASE("One failure ends all ranks with the exit code of the rank that failed") {
  Launched launched(3, "echo $$ > $1/pid$RANK; if [ $RANK = 1 ]; then exit 4; fi; sleep 600");
  CHECK(launched.wait() == 4);
  CHECK_THAT(launched.program->errors(), Catch::Contains("error[launch.rank] rank 1: ended with exit code 4"));
  for (const char* name : {"pid0", "pid2"}) {
    const std::string text = launched.file(name);  // a rank may have been stopped before it wrote its number
    if (!text.empty()) CHECK(soon([&] { return gone(text.substr(0, text.find('\n'))); }));
  }
}

TEST_CASE("An error of a rank has its number once") {
  const TempDir dir;
  Program program("trainkit", {"launch", "--nproc_per_node", "2", "--", "trainkit-transformer", "--no_such_flag"},
                  dir.path().string());
  CHECK(program.wait() == 2);
  CHECK_THAT(program.errors(),
             Catch::Contains("[rank 0] trainkit: error[") || Catch::Contains("[rank 1] trainkit: error["));
  CHECK_THAT(program.errors(), !Catch::Contains("[rank 0] [rank") && !Catch::Contains("[rank 1] [rank"));
}

TEST_CASE("A killed rank has exit code 8") {
  Launched launched(2, "if [ $RANK = 1 ]; then kill -9 $$; fi; sleep 600");
  CHECK(launched.wait() == 8);
  CHECK_THAT(launched.program->errors(), Catch::Contains("rank 1: was killed by signal 9 (Killed)"));
  CHECK(Launched(2, "if [ $RANK = 0 ]; then kill -SEGV $$; fi; sleep 600").wait() == 8);
}

TEST_CASE("A rank that lost its peer does not hide the peer's own failure") {
  // Rank 0 exits with 8 first, rank 1 with the actual error.
  Launched launched(2, "if [ $RANK = 0 ]; then exit 8; fi; sleep 0.3; exit 5");
  CHECK(launched.wait() == 5);
}

TEST_CASE("Ranks that ignore SIGTERM are killed after the grace period, and the failure keeps its exit code") {
  Launched launched(2,
                    "if [ $RANK = 0 ]; then trap '' TERM; touch $1/deaf; while :; do sleep 1; done; fi; "
                    "while [ ! -e $1/deaf ]; do sleep 0.01; done; exit 3",
                    {"--grace", "0.5"});
  CHECK(launched.wait() == 3);
}

TEST_CASE("A rank that is suspended is ended too") {
  Launched launched(2,
                    "if [ $RANK = 0 ]; then echo $$ > $1/pid; kill -STOP $$; sleep 600; fi; "
                    "while [ ! -s $1/pid ]; do sleep 0.01; done; sleep 0.1; exit 3");
  CHECK(launched.wait() == 3);
}

TEST_CASE("SIGTERM reaches every rank once, and a rank that takes longer to save is not interrupted") {
  for (const int signal : {SIGTERM, SIGINT}) {
    const std::string code = std::to_string(128 + signal);
    Launched launched(2,
                      "trap 'echo signal >> $1/heard$RANK; stop=1' TERM INT; touch $1/ready$RANK; "
                      "while [ -z \"$stop\" ]; do sleep 0.05; done; "
                      "if [ $RANK = 0 ]; then for i in {1..15}; do sleep 0.1; done; echo saved; fi; exit " +
                          code);
    REQUIRE(launched.wait_for("ready0"));
    REQUIRE(launched.wait_for("ready1"));
    launched.program->kill(signal);
    CHECK(launched.wait() == 128 + signal);
    CHECK(launched.file("heard0") == "signal\n");
    CHECK(launched.file("heard1") == "signal\n");
    CHECK_THAT(launched.program->output(), Catch::Contains("[rank 0] saved\n"));
    CHECK_THAT(launched.program->errors(), !Catch::Contains("error["));
  }
}

TEST_CASE("A rank stopped by its own signal leaves the other ranks time to save") {
  Launched launched(2, "if [ $RANK = 1 ]; then exit 143; fi; trap 'echo cut' TERM; sleep 1.5; echo saved; exit 143");
  CHECK(launched.wait() == 143);
  CHECK_THAT(launched.program->output(), Catch::Contains("[rank 0] saved\n") && !Catch::Contains("cut"));
}

TEST_CASE("Ranks that do not stop after another rank has stopped are ended") {
  Launched launched(2, "if [ $RANK = 1 ]; then exit 143; fi; sleep 600", {"--stop_timeout", "0.5", "--grace", "1"});
  CHECK(launched.wait() == 8);
}

TEST_CASE("Programs without a handler end by the signal, and the exit code gives the signal") {
  // Without a child: bash ignores a SIGINT that its child survived.
  Launched launched(2, ": >$1/ready$RANK; exec sleep 600");
  REQUIRE(launched.wait_for("ready0"));
  REQUIRE(launched.wait_for("ready1"));
  launched.program->kill(SIGINT);
  CHECK(launched.wait() == 128 + SIGINT);
}

TEST_CASE("After a second signal ranks that do not end within the grace period are killed") {
  Launched launched(1, "trap 'echo s >> $1/heard' TERM; touch $1/ready; while :; do sleep 0.05; done",
                    {"--grace", "0.5"});
  REQUIRE(launched.wait_for("ready"));
  launched.program->kill(SIGTERM);
  REQUIRE(launched.wait_for("heard"));
  launched.program->kill(SIGTERM);
  CHECK(launched.wait() == 8);
  CHECK(launched.file("heard") == "s\ns\n");
}

TEST_CASE("SIGUSR1 is passed on and ends no rank") {
  Launched launched(1,
                    "trap 'touch $1/saved' USR1; touch $1/ready; "
                    "while [ ! -e $1/saved ]; do sleep 0.05; done; true");
  REQUIRE(launched.wait_for("ready"));
  launched.program->kill(SIGUSR1);
  CHECK(launched.wait() == 0);
  CHECK(fs::exists(launched.dir / "saved"));
}

TEST_CASE("Closing the terminal stops the ranks normally, except under nohup") {
  const std::string script =
      "trap 'echo saved; exit 143' TERM; touch $1/ready; "
      "while [ ! -e $1/end ]; do sleep 0.05; done";
  Launched plain(1, script);
  REQUIRE(plain.wait_for("ready"));
  plain.program->kill(SIGHUP);
  CHECK(plain.wait() == 143);
  CHECK(plain.program->output() == "[rank 0] saved\n");

  const auto before = ::signal(SIGHUP, SIG_IGN);
  Launched kept(1, script);
  ::signal(SIGHUP, before);
  REQUIRE(kept.wait_for("ready"));
  kept.program->kill(SIGHUP);
  std::this_thread::sleep_for(300ms);
  std::ofstream(kept.dir / "end");
  CHECK(kept.wait() == 0);
}

TEST_CASE("Ranks receive SIGINT even if the launcher was started with it ignored") {
  const auto before = ::signal(SIGINT, SIG_IGN);
  Launched launched(1, "trap 'exit 130' INT; touch $1/ready; while :; do sleep 0.05; done");
  ::signal(SIGINT, before);
  REQUIRE(launched.wait_for("ready"));
  launched.program->kill(SIGINT);
  CHECK(launched.wait() == 130);
}

TEST_CASE("Ranks end when their launcher is killed") {
  Launched launched(2, "echo $$ > $1/pid$RANK.new; mv $1/pid$RANK.new $1/pid$RANK; exec sleep 600");
  REQUIRE(launched.wait_for("pid0"));
  REQUIRE(launched.wait_for("pid1"));
  launched.program->kill(SIGKILL);
  CHECK(launched.wait() == 256 + SIGKILL);
  for (const char* name : {"pid0", "pid1"}) {
    const std::string text = launched.file(name);
    CHECK(soon([&] { return gone(text.substr(0, text.find('\n'))); }));
  }
}

TEST_CASE("Ranks are direct children, and none becomes a zombie") {
  Launched launched(2,
                    "echo $PPID $$ > $1/pid$RANK.new; mv $1/pid$RANK.new $1/pid$RANK; "
                    "if [ $RANK = 1 ]; then while [ ! -e $1/end ]; do sleep 0.01; done; fi");
  REQUIRE(launched.wait_for("pid0"));
  REQUIRE(launched.wait_for("pid1"));
  std::string parent, ended;
  std::istringstream(launched.file("pid0")) >> parent >> ended;
  CHECK(read_text("/proc/" + parent + "/comm") == "trainkit\n");
  CHECK(soon([&] { return state_of(ended) == '\0'; }));
  std::ofstream(launched.dir / "end");
  CHECK(launched.wait() == 0);
}

TEST_CASE("Processes that a failed rank has started end with it") {
  Launched launched(1, "sleep 600 & echo $! > $1/pid; exit 1");
  CHECK(launched.wait() == 1);
  const std::string text = launched.file("pid");
  CHECK(soon([&] { return gone(text.substr(0, text.find('\n'))); }));
}

TEST_CASE("Output that a rank's child keeps open does not block the launcher") {
  Launched launched(1, "setsid sleep 600 & echo $! > $1/pid; echo done");
  CHECK(launched.wait() == 0);
  CHECK(launched.program->output() == "[rank 0] done\n");
  ::kill(std::stoi(launched.file("pid")), SIGKILL);
}

TEST_CASE("The last line of a rank is kept, with or without a line end") {
  // Rank 1 fails once rank 0 has written: the launcher ends the others.
  Launched launched(2,
                    "printf 'last words'; printf 'and errors' >&2; [ $RANK = 1 ] || { touch $1/written; exit 0; }; "
                    "while [ ! -e $1/written ]; do sleep 0.01; done; exit 4");
  CHECK(launched.wait() == 4);
  CHECK(sorted_lines(launched.program->output()) ==
        std::vector<std::string>{"[rank 0] last words", "[rank 1] last words"});
  CHECK_THAT(launched.program->errors(), Catch::Contains("[rank 1] and errors\n"));
}

TEST_CASE("A rank reads nothing from the terminal") {
  Launched launched(2, "if read line; then echo got $line; else echo nothing; fi");
  CHECK(launched.wait() == 0);
  CHECK(sorted_lines(launched.program->output()) == std::vector<std::string>{"[rank 0] nothing", "[rank 1] nothing"});
}

TEST_CASE("A program that cannot be started is a usage error") {
  TempDir dir;
  Program missing("trainkit", {"launch", "--nproc_per_node", "2", "--", "no-such-program"}, dir.path().string());
  CHECK(missing.wait() == 2);
  CHECK_THAT(missing.errors(), Catch::Contains("error[launch.start] no-such-program: cannot be started: No such file"));
  Program none("trainkit", {"launch", "--nproc_per_node", "2"}, dir.path().string());
  CHECK(none.wait() == 2);
  CHECK_THAT(none.errors(), Catch::Contains("two dashes"));
  Program many("trainkit", {"launch", "--nproc_per_node", "0", "--", "true"}, dir.path().string());
  CHECK(many.wait() == 2);
}

TEST_CASE("a limit on open files ends the ranks that have started, and is named") {
  TempDir dir;
  Program few(
      "/bin/bash",
      {"-c", "ulimit -n 64; exec \"$0\" launch --nproc_per_node 100 -- sleep 600", TRAINKIT_BIN_DIR "/trainkit"},
      dir.path().string());
  CHECK(few.wait() == 8);
  CHECK_THAT(few.errors(), Catch::Contains("error[launch.start]") && Catch::Contains("Too many open files") &&
                               Catch::Contains("hint: raise the limit of open files: ulimit -n"));
}

TEST_CASE("a port in use is reported before any rank starts") {
  Launched first(1,
                 "exec python3 -c 'import socket,sys,time\ns=socket.socket()\ns.bind((\"127.0.0.1\",0))\ns.listen()\n"
                 "print(s.getsockname()[1],file=open(sys.argv[1]+\"/port.new\",\"w\"),flush=True)\n"
                 "import os\nos.rename(sys.argv[1]+\"/port.new\",sys.argv[1]+\"/port\")\ntime.sleep(600)' $1");
  REQUIRE(first.wait_for("port"));
  const std::string port = std::to_string(std::stoi(first.file("port")));
  Launched second(1, "touch $1/started", {"--master_port", port});
  CHECK(second.wait() == 8);
  CHECK_THAT(second.program->errors(), Catch::Contains("MASTER_PORT: already in use (got '" + port + "'"));
  CHECK_FALSE(fs::exists(second.dir / "started"));
  first.program->kill(SIGTERM);
  CHECK(first.wait() == 143);
}

TEST_CASE("The tool lists its commands and suggests the nearest name") {
  TempDir dir;
  Program help("trainkit", {"--help"}, dir.path().string());
  CHECK(help.wait() == 0);
  for (const char* word : {"launch", "doctor", "scale", "Examples"}) CHECK_THAT(help.output(), Catch::Contains(word));
  Program misspelt("trainkit", {"lunch"}, dir.path().string());
  CHECK(misspelt.wait() == 2);
  CHECK_THAT(misspelt.errors(),
             Catch::Contains("no such command (got 'lunch'") && Catch::Contains("did you mean trainkit launch?"));
  Program nothing("trainkit", {}, dir.path().string());
  CHECK(nothing.wait() == 2);
  Program version("trainkit", {"--version"}, dir.path().string());
  CHECK(version.wait() == 0);
  CHECK_THAT(version.output(), Catch::Contains("libtorch 2."));
}
