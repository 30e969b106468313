#include "trainkit/logging/monitor.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <fstream>

#include "trainkit/core/processors.h"

namespace trainkit {
namespace {

constexpr double kWorthSaying = 0.05, kBusy = 0.8, kIdleProcessors = 0.5;
constexpr int64_t kFewBatches = 10;

double seconds_of(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

PrefetcherStats difference(const PrefetcherStats& after, const PrefetcherStats& before) {
  PrefetcherStats stats = after;
  stats.batches -= before.batches;
  stats.rows -= before.rows;
  stats.wait_seconds -= before.wait_seconds;
  stats.consumer_seconds -= before.consumer_seconds;
  stats.read_seconds -= before.read_seconds;
  stats.ready_batches -= before.ready_batches;
  stats.allocations -= before.allocations;
  return stats;
}

std::string loader_advice(const PrefetcherStats& stats, const LoaderSettings& settings) {
  const double wait = stats.wait_fraction(), total = stats.wait_seconds + stats.consumer_seconds;
  if (stats.batches < kFewBatches || wait < kWorthSaying) return "";
  const std::string start = fmt::format("data wait {:.0f}%: ", wait * 100);
  // Readers that would have kept up with the time that the step itself took.
  const double needed = std::ceil(stats.read_seconds / std::max(stats.consumer_seconds, total * 0.01));
  const int cpus = std::max(settings.cpus, 1), workers = settings.num_workers;
  const auto at_most = [needed](int most) { return static_cast<int>(std::min<double>(needed, most)); };
  if (workers == 0) {
    return fmt::format("{}the training thread reads the rows itself; set --num_workers to {}", start,
                       std::max(at_most(cpus), 1));
  }
  const std::string readers = workers == 1 ? "the reader is" : fmt::format("the {} readers are", workers);
  const bool busy = stats.read_seconds >= kBusy * workers * total;
  if (!busy) {
    return fmt::format(
        "{}{} idle at times, the ring is too short for rows of uneven cost; raise --prefetch_factor from {} to {}",
        start, readers, settings.prefetch_factor, settings.prefetch_factor * 2);
  }
  if (settings.cpu_share >= 0 && settings.cpu_share < kIdleProcessors) {
    return fmt::format(
        "{}{} waiting for storage while the processors idle; raise --num_workers from {} to {}, or move the data to a "
        "faster disk",
        start, readers, workers, std::max(at_most(4 * cpus), workers + 1));
  }
  if (workers < cpus) {
    return fmt::format("{}{} always busy; raise --num_workers from {} to {}", start, readers, workers,
                       std::max(at_most(cpus), workers + 1));
  }
  return fmt::format(
      "{}{} always busy and every processor has one; make a row cheaper to read (store it decoded, cache it)", start,
      readers);
}

/// The functions of NVML that we call, with the structures of its ABI.
/// Source: nvml.h of the CUDA toolkit (nvmlMemory_t, nvmlUtilization_t, nvmlProcessInfo_t; the _v2 and _v3 entry
/// points).
class ResourceMonitor::Nvml {
 public:
  static std::unique_ptr<Nvml> open(const std::string& library) {
    void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) return nullptr;
    auto nvml = std::unique_ptr<Nvml>(new Nvml(handle));
    return nvml->load() ? std::move(nvml) : nullptr;
  }
  ~Nvml() {
    if (started_) shutdown_();
    ::dlclose(handle_);
  }

  std::vector<GpuUsage> gpus() const {
    std::vector<GpuUsage> all;
    unsigned int count = 0;
    if (count_(&count) != 0) return all;
    for (unsigned int i = 0; i < count; ++i) {
      Device device = nullptr;
      char name[96] = "";
      Memory memory{};
      Utilization utilization{};
      if (device_(i, &device) != 0 || memory_(device, &memory) != 0) continue;  // not ours to see
      if (name_(device, name, sizeof name) != 0) name[0] = '\0';
      if (utilization_(device, &utilization) != 0) utilization.gpu = 0;  // MIG devices do not know it
      all.push_back({.name = name,
                     .used_bytes = static_cast<int64_t>(memory.used),
                     .total_bytes = static_cast<int64_t>(memory.total),
                     .utilization = utilization.gpu / 100.0});
    }
    return all;
  }

  std::vector<GpuProcess> processes() const {
    std::vector<GpuProcess> all;
    unsigned int gpus = 0;
    if (!processes_ || count_(&gpus) != 0) return all;
    for (unsigned int i = 0; i < gpus; ++i) {
      Device device = nullptr;
      std::array<Process, 256> found{};
      unsigned int count = found.size();
      if (device_(i, &device) != 0 || processes_(device, &count, found.data()) != 0) continue;
      for (unsigned int k = 0; k < count; ++k) {
        std::string name;
        std::getline(std::ifstream(fmt::format("/proc/{}/comm", found[k].pid)), name);
        const bool known = found[k].used != ~0ull;  // NVML_VALUE_NOT_AVAILABLE
        all.push_back({.gpu = static_cast<int>(i),
                       .pid = found[k].pid,
                       .name = name,
                       .used_bytes = known ? static_cast<int64_t>(found[k].used) : -1});
      }
    }
    return all;
  }

 private:
  using Device = void*;
  struct Process {
    unsigned int pid;
    unsigned long long used;
    unsigned int gpu_instance, compute_instance;
  };
  struct Memory {
    unsigned long long total, free, used;
  };
  struct Utilization {
    unsigned int gpu, memory;
  };

  explicit Nvml(void* handle) : handle_(handle) {}

  template <class Function>
  bool find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(handle_, name));
    return function != nullptr;
  }
  bool load() {
    int (*start)() = nullptr;
    started_ = find(start, "nvmlInit_v2") && find(shutdown_, "nvmlShutdown") && find(count_, "nvmlDeviceGetCount_v2") &&
               find(device_, "nvmlDeviceGetHandleByIndex_v2") && find(name_, "nvmlDeviceGetName") &&
               find(memory_, "nvmlDeviceGetMemoryInfo") && find(utilization_, "nvmlDeviceGetUtilizationRates") &&
               start() == 0;
    find(processes_, "nvmlDeviceGetComputeRunningProcesses_v3");  // drivers before 510 lack it
    return started_;
  }

  void* handle_;
  bool started_ = false;
  int (*shutdown_)() = nullptr;
  int (*count_)(unsigned int*) = nullptr;
  int (*device_)(unsigned int, Device*) = nullptr;
  int (*name_)(Device, char*, unsigned int) = nullptr;
  int (*memory_)(Device, Memory*) = nullptr;
  int (*utilization_)(Device, Utilization*) = nullptr;
  int (*processes_)(Device, unsigned int*, Process*) = nullptr;
};

ResourceMonitor::ResourceMonitor(const std::string& nvml_library)
    : nvml_(Nvml::open(nvml_library)),
      cpus_(available_cpus()),
      wall_seconds_(seconds_of(CLOCK_MONOTONIC)),
      cpu_seconds_(seconds_of(CLOCK_PROCESS_CPUTIME_ID)) {}
ResourceMonitor::~ResourceMonitor() = default;

int64_t ResourceMonitor::resident_bytes() const {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

double ResourceMonitor::cpu_share() {
  const double wall = seconds_of(CLOCK_MONOTONIC), cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  const double passed = wall - std::exchange(wall_seconds_, wall), used = cpu - std::exchange(cpu_seconds_, cpu);
  return passed > 0 ? std::clamp(used / passed / cpus_, 0.0, 1.0) : 0;
}

std::vector<GpuUsage> ResourceMonitor::gpus() const { return nvml_ ? nvml_->gpus() : std::vector<GpuUsage>{}; }

std::vector<GpuProcess> ResourceMonitor::gpu_processes() const {
  return nvml_ ? nvml_->processes() : std::vector<GpuProcess>{};
}

std::vector<std::pair<std::string, double>> ResourceMonitor::sample() {
  std::vector<std::pair<std::string, double>> values = {{"host_memory_bytes", static_cast<double>(resident_bytes())},
                                                        {"cpu_share", cpu_share()}};
  const std::vector<GpuUsage> all = gpus();
  for (size_t i = 0; i < all.size(); ++i) {
    values.emplace_back(fmt::format("gpu_utilization/{}", i), all[i].utilization);
    values.emplace_back(fmt::format("gpu_used_bytes/{}", i), static_cast<double>(all[i].used_bytes));
  }
  return values;
}

}  // namespace trainkit
