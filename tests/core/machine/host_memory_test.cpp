#include "core/machine/host_memory.h"

#include <fstream>

#include "test_util.h"

namespace trainkit {
namespace {

constexpr char kMeminfo[] =
    "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\nSwapFree:         50 kB\n";

void write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

TEST_CASE("The machine's memory is the limit if there is no control group limit", "[core][host_memory]") {
  const test::TempDir dir;
  write(dir / "a/memory.max", "max\n");
  write(dir / "a/memory.current", "1000\n");
  const HostMemory memory = detail::host_memory(kMeminfo, dir.path().string(), "0::/a\n");
  CHECK(memory.total_bytes == 1000 << 10);
  CHECK(memory.available_bytes == 600 << 10);
  CHECK(memory.free_swap_bytes == 50 << 10);
}

TEST_CASE("The tightest control group limit applies, and inactive file pages count as free", "[core][host_memory]") {
  const test::TempDir dir;
  write(dir / "a/memory.max", "400000\n");
  write(dir / "a/memory.current", "390000\n");
  write(dir / "a/memory.stat", "anon 100000\ninactive_file 90000\n");
  write(dir / "a/b/memory.max", "300000\n");
  write(dir / "a/b/memory.current", "100000\n");
  const HostMemory memory = detail::host_memory(kMeminfo, dir.path().string(), "0::/a/b\n");
  CHECK(memory.total_bytes == 400000);
  CHECK(memory.available_bytes == 100000);
  CHECK(memory.free_swap_bytes == 0);
}

TEST_CASE("Limits of version 1 control groups apply, except the value that means unlimited", "[core][host_memory]") {
  const test::TempDir dir;
  write(dir / "memory/memory.limit_in_bytes", "9223372036854771712\n");
  write(dir / "memory/memory.usage_in_bytes", "5000\n");
  write(dir / "memory/x/memory.limit_in_bytes", "200000\n");
  write(dir / "memory/x/memory.usage_in_bytes", "150000\n");
  write(dir / "memory/x/memory.stat", "inactive_file 1\ntotal_inactive_file 20000\n");
  const HostMemory memory = detail::host_memory(kMeminfo, dir.path().string(), "4:memory:/x\n0::/\n");
  CHECK(memory.total_bytes == 200000);
  CHECK(memory.available_bytes == 70000);
}

TEST_CASE("Memory facts that the kernel does not report are zero; this machine's memory is not",
          "[core][host_memory]") {
  CHECK(detail::host_memory("", "/nowhere", "").total_bytes == 0);
  CHECK(detail::host_memory("nonsense\n:\n", "/nowhere", "0::\n").available_bytes == 0);
  const HostMemory memory = host_memory();
  CHECK(memory.total_bytes > 0);
  CHECK(memory.available_bytes > 0);
  CHECK(memory.available_bytes <= memory.total_bytes);
}

}  // namespace
}  // namespace trainkit
