#include "trainkit/core/processors.h"

#include <sched.h>

#include <algorithm>
#include <fstream>

#include "test_util.h"

namespace trainkit {
namespace {

void write_text(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

TEST_CASE("The smallest quota among a control group and its parents applies", "[core][processors]") {
  const test::TempDir dir;
  const std::string root = dir.path().string();
  write_text(dir / "a/cpu.max", "400000 100000\n");
  write_text(dir / "a/b/cpu.max", "max 100000\n");
  write_text(dir / "a/b/c/cpu.max", "150000 100000\n");
  CHECK(detail::cgroup_cpus(root, "0::/a/b\n") == 4);
  CHECK(detail::cgroup_cpus(root, "0::/a/b/c\n") == 1.5);
  CHECK(detail::cgroup_cpus(root, "0::/elsewhere\n") == 0);
  CHECK(detail::cgroup_cpus(root, "0::/\n") == 0);
  CHECK(detail::cgroup_cpus(root, "") == 0);
  CHECK(detail::cgroup_cpus(root, "nonsense\n:\n::\n") == 0);
  write_text(dir / "a/b/c/cpu.max", "what\n");
  CHECK(detail::cgroup_cpus(root, "0::/a/b/c\n") == 4);
}

TEST_CASE("Quotas of version 1 control groups apply", "[core][processors]") {
  const test::TempDir dir;
  write_text(dir / "cpu/x/cpu.cfs_quota_us", "250000\n");
  write_text(dir / "cpu/x/cpu.cfs_period_us", "100000\n");
  write_text(dir / "cpu/cpu.cfs_quota_us", "-1\n");
  CHECK(detail::cgroup_cpus(dir.path().string(), "5:memory:/x\n4:cpu,cpuacct:/x\n") == 2.5);
  CHECK(detail::cgroup_cpus(dir.path().string(), "4:cpuset:/x\n") == 0);
}

TEST_CASE("available_cpus respects the affinity mask", "[core][processors]") {
  cpu_set_t before, one;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  CHECK(available_cpus() >= 1);
  CHECK(available_cpus() <= CPU_COUNT(&before));
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before)) {
      CPU_SET(cpu, &one);
      break;
    }
  }
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(available_cpus() == 1);
  CHECK(suggest_num_workers(8) == 1);
  CHECK(suggest_intra_op_threads(4) == 1);
  REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
}

TEST_CASE("Workers and LibTorch's threads share the CPU cores", "[core][processors]") {
  const int cpus = available_cpus();
  CHECK(suggest_num_workers(1) == std::max(1, std::min(cpus / 2, 2)));
  CHECK(suggest_num_workers(100) == std::max(1, std::min(cpus / 2, 8)));
  CHECK(suggest_num_workers(1, 1000) == 1);
  // The documented rule: min(cpus / 2, 8, 2 x devices), and at least one.
  for (int machine = 1; machine <= 64; ++machine) {
    for (int devices = 0; devices <= 8; ++devices) {
      const int guide = std::max(1, std::min({machine / 2, 8, std::max(devices, 1) * 2}));
      CHECK(suggest_num_workers(devices, 1, machine) == guide);
      CHECK(suggest_num_workers(devices, 2, machine) == std::max(1, guide / 2));
    }
  }
  CHECK(suggest_intra_op_threads(0) == cpus);
  CHECK(suggest_intra_op_threads(3, ReadCost::kCopy) == cpus);
  CHECK(suggest_intra_op_threads(0, ReadCost::kCopy, 1000) == 1);
  CHECK(suggest_num_workers() + suggest_intra_op_threads(suggest_num_workers()) == std::max(2, cpus));
}

}  // namespace
}  // namespace trainkit
