// The real mpirun of Open MPI with our programs.
#include <set>

#include "distributed/group/launcher_process.h"
#include "test_util.h"

using namespace trainkit::test;

namespace {

const std::string kMpirun =
    "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe --bind-to none ";

bool has_mpirun() { return std::system("mpirun --version > /dev/null 2>&1") == 0; }

}  // namespace

TEST_CASE("Ranks of mpirun meet on the loopback interface at the same port") {
  if (!has_mpirun()) TRAINKIT_SKIP("mpirun is not installed (Debian package openmpi-bin)");
  TempDir dir;
  const int code = run_launcher(kMpirun + "-np 3 " + LAUNCHED_RANK + " " + dir.path().string(), dir);
  INFO(text_of(dir / "output"));
  REQUIRE(code == 0);
  std::set<std::string> meeting_points, jobs;
  for (int rank = 0; rank < 3; ++rank) {
    const std::string r = std::to_string(rank);
    const auto lines = lines_of(dir / ("rank" + r + ".0"));
    REQUIRE(lines.size() == 4);
    CHECK(lines[0] == "open mpi " + r + "/3 " + r + "/3 0 own");
    CHECK_THAT(lines[1], Catch::StartsWith("127.0.0.1:"));
    meeting_points.insert(lines[1]);
    jobs.insert(lines[2]);
  }
  CHECK(meeting_points.size() == 1);
  CHECK(jobs.size() == 1);
  CHECK_FALSE(jobs.begin()->empty());
}

TEST_CASE("Two jobs of mpirun on one machine have different names and ports") {
  if (!has_mpirun()) TRAINKIT_SKIP("mpirun is not installed (Debian package openmpi-bin)");
  std::set<std::string> jobs;
  for (int i = 0; i < 2; ++i) {
    TempDir dir;
    REQUIRE(run_launcher(kMpirun + "-np 1 " + LAUNCHED_RANK + " " + dir.path().string(), dir) == 0);
    const auto lines = lines_of(dir / "rank0.0");
    REQUIRE(lines.size() == 4);
    jobs.insert(lines[2]);
  }
  CHECK(jobs.size() == 2);
}

TEST_CASE("MASTER_ADDR and MASTER_PORT given to mpirun are used") {
  if (!has_mpirun()) TRAINKIT_SKIP("mpirun is not installed (Debian package openmpi-bin)");
  TempDir dir;
  const int code = run_launcher(
      kMpirun + "-np 2 -x MASTER_ADDR=localhost -x MASTER_PORT=29733 " + LAUNCHED_RANK + " " + dir.path().string(),
      dir);
  INFO(text_of(dir / "output"));
  REQUIRE(code == 0);
  CHECK(lines_of(dir / "rank1.0").at(1) == "localhost:29733");
}
