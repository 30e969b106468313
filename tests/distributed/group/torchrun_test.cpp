// The real torchrun with our programs, which use no Python.
#include <filesystem>

#include "distributed/group/launcher_process.h"
#include "test_util.h"

using namespace trainkit::test;

namespace {

/// "<python> -m torch.distributed.run ...", which is equivalent to torchrun.
std::string torchrun(const std::string& flags, const std::string& arguments) {
  return python() + " -m torch.distributed.run --standalone --nproc_per_node 2 " + flags + " --no-python " +
         LAUNCHED_RANK + " " + arguments;
}

}  // namespace

TEST_CASE("Ranks of torchrun find the common rendezvous and the agent's store") {
  if (python().empty()) TRAINKIT_SKIP("TRAINKIT_PYTHON names no Python with torch");
  TempDir dir;
  const int code = run_launcher(torchrun("", dir.path().string()), dir);
  INFO(text_of(dir / "output"));
  REQUIRE(code == 0);
  const auto first = lines_of(dir / "rank0.0"), second = lines_of(dir / "rank1.0");
  REQUIRE(first.size() == 4);
  REQUIRE(second.size() == 4);
  CHECK(first[0] == "torchrun 0/2 0/2 0 agent");
  CHECK(second[0] == "torchrun 1/2 1/2 0 agent");
  CHECK(first[1] == second[1]);  // the address
  CHECK(first[2] == second[2]);  // the job name
  CHECK_FALSE(first[2].empty());
  CHECK_FALSE(first[3].empty());  // the error file, one per rank
  CHECK(first[3] != second[3]);
}

TEST_CASE("A restart by torchrun is counted, after an exit code and after a crash") {
  if (python().empty()) TRAINKIT_SKIP("TRAINKIT_PYTHON names no Python with torch");
  for (const std::string fault : {"exit", "segv"}) {
    TempDir dir;
    const int code = run_launcher(torchrun("--max-restarts 1", dir.path().string() + " " + fault), dir);
    INFO(text_of(dir / "output"));
    REQUIRE(code == 0);
    CHECK(std::filesystem::exists(dir / "rank1.0"));
    for (const char* name : {"rank0.1", "rank1.1"}) CHECK(lines_of(dir / name).size() == 4);
    CHECK_FALSE(std::filesystem::exists(dir / "rank0.2"));
  }
}

TEST_CASE("Without restarts left, torchrun fails and reports the rank") {
  if (python().empty()) TRAINKIT_SKIP("TRAINKIT_PYTHON names no Python with torch");
  TempDir dir;
  CHECK(run_launcher(torchrun("", dir.path().string() + " exit"), dir) == 1);
  CHECK_THAT(text_of(dir / "output"), Catch::Contains("exitcode  : 1"));
}
