#include "monitor/resource_monitor.h"

#include "logging/environment_variable.h"
#include "test_util.h"

using namespace trainkit;

TEST_CASE("The memory of this process is measured", "[logging][resource_monitor]") {
  const ResourceMonitor monitor({.nvml = "libdoes-not-exist.so"});
  const int64_t before = monitor.resident_bytes();
  CHECK(before > (4 << 20));
  std::vector<char> block(64 << 20, 1);
  CHECK(monitor.resident_bytes() - before > (60 << 20));
  CHECK(monitor.gpus().empty());
  CHECK(monitor.gpus_of({0}).empty());
  CHECK(block.back() == 1);
}

TEST_CASE("GPUs are read through the driver's library, except those that it refuses", "[logging][resource_monitor]") {
  const ResourceMonitor monitor({.nvml = FAKE_NVML, .cuda = FAKE_NVML});
  const std::vector<GpuUsage> gpus = monitor.gpus();
  REQUIRE(gpus.size() == 1);
  CHECK(gpus[0].name == "Pretend 9000");
  CHECK(gpus[0].total_bytes == int64_t{24} << 30);
  CHECK(gpus[0].used_bytes == int64_t{3} << 30);
  CHECK(gpus[0].utilization == Approx(0.87));
  CHECK(gpus[0].pci_bus_id == "00000000:81:00.0");
}

TEST_CASE("LibTorch's devices are found by their PCI bus address", "[logging][resource_monitor]") {
  const ResourceMonitor monitor({.nvml = FAKE_NVML, .cuda = FAKE_NVML});
  CHECK(monitor.gpus_of({0}).size() == 1);
  CHECK(monitor.gpus_of({0, 0}).size() == 2);
  CHECK(monitor.gpus_of({1}).empty());  // the driver does not know this address
  CHECK(monitor.gpus_of({}).empty());
  CHECK(ResourceMonitor({.nvml = FAKE_NVML, .cuda = "no-such-library.so"}).gpus_of({0}).empty());
}

TEST_CASE("A GPU that does not report its utilisation does not count as idle", "[logging][resource_monitor]") {
  const test::EnvironmentVariable slice("FAKE_NVML_UTILISATION", "none");
  CHECK(ResourceMonitor({.nvml = FAKE_NVML}).gpus().at(0).utilization < 0);
}

TEST_CASE("A library with NVML's name but not its functions gives no GPU", "[logging][resource_monitor]") {
  CHECK(ResourceMonitor({.nvml = "libm.so.6"}).gpus().empty());
}

TEST_CASE("Processes that hold memory of a GPU are listed if they are visible", "[logging][resource_monitor]") {
  const std::vector<GpuProcess> processes = ResourceMonitor({.nvml = FAKE_NVML}).gpu_processes();
  REQUIRE(processes.size() == 2);
  CHECK(processes[0].gpu == 1);
  CHECK(processes[0].pid == 1);
  CHECK_FALSE(processes[0].name.empty());
  CHECK(processes[0].used_bytes == int64_t{2} << 30);
  CHECK(processes[1].name.empty());
  CHECK(processes[1].used_bytes == -1);
  CHECK(ResourceMonitor({.nvml = "no-such-library.so"}).gpu_processes().empty());
}
