#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "core/device/cuda_support.h"
#include "core/machine/cgroup.h"
#include "trainkit/core/format.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/processors.h"
#include "trainkit/job_sizes.h"
#include "trainkit/probes.h"
#include "trainkit/report/summary.h"

namespace trainkit::tool {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;

/// Returns the value of the first line "name : value" in /proc/cpuinfo or /proc/meminfo; empty if there is none.
std::string proc_value(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (!line.starts_with(name) || colon == std::string::npos) continue;
    return line.substr(std::min(line.find_first_not_of(" \t", colon + 1), line.size()));
  }
  return {};
}

/// Returns a value of /proc/meminfo in bytes; -1 if it is missing.
int64_t meminfo_bytes(const std::string& name) {
  const std::vector<std::string> words = absl::StrSplit(proc_value("/proc/meminfo", name), ' ');  // "1024 kB"
  int64_t kib = 0;
  return absl::SimpleAtoi(words.front(), &kib) ? kib * 1024 : -1;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void probe_versions(Findings& findings) {
  for (const auto& [name, version] : library_versions()) findings.add("versions", name, version, version);
  utsname system{};
  uname(&system);
  findings.add("versions", "kernel", system.release, system.release);
}

void probe_processors(Findings& findings) {
  const std::string model = proc_value("/proc/cpuinfo", "model name");
  findings.add("processors", "model", model, model.empty() ? "unknown" : model);
  findings.add("processors", "vector unit", at::get_cpu_capability(), at::get_cpu_capability());
  const int online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)), usable = available_cpus();
  cpu_set_t mask;
  const int affinity = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : online;
  const double quota = detail::cgroup_cpus("/sys/fs/cgroup", detail::read_text("/proc/self/cgroup"));
  findings.add("processors", "affinity mask", affinity, fmt::format("{} of {}", affinity, online),
               affinity < online ? Verdict::kNote : Verdict::kOk,
               affinity < online ? "taskset, numactl or a job scheduler has bound this process" : "");
  findings.add("processors", "quota", quota, quota > 0 ? fmt::format("{:.3g} processors", quota) : "none");
  findings.add(
      "processors", "usable", usable, fmt::format("{}", usable), usable < 2 ? Verdict::kWarning : Verdict::kOk,
      usable < 2 ? "the loader's workers and the training thread share one CPU: give the process at least two" : "");
  findings.add(
      "processors", "LibTorch threads", at::get_num_threads(), fmt::format("{}", at::get_num_threads()),
      at::get_num_threads() > usable ? Verdict::kWarning : Verdict::kOk,
      at::get_num_threads() > usable ? fmt::format("more threads than processors: OMP_NUM_THREADS={}", usable) : "");
}

void probe_memory(Findings& findings) {
  const int64_t total = meminfo_bytes("MemTotal"), available = meminfo_bytes("MemAvailable");
  findings.add("memory", "total", total, format_size(total));
  const bool tight = available >= 0 && available < 2 * kGiB;
  findings.add("memory", "available", available, format_size(available), tight ? Verdict::kWarning : Verdict::kOk,
               tight ? "close other programs: the kernel kills a process when memory runs out" : "");
  int64_t limit = 0;  // "max" is no number
  if (absl::SimpleAtoi(detail::read_text("/sys/fs/cgroup/memory.max"), &limit)) {
    findings.add("memory", "container's limit", limit, format_size(limit), Verdict::kNote);
  }
  struct statvfs shared {};
  if (statvfs("/dev/shm", &shared) != 0) {
    findings.add("memory", "/dev/shm", nullptr, "missing", Verdict::kWarning,
                 "NCCL needs it between ranks: mount a tmpfs");
    return;
  }
  const int64_t bytes = static_cast<int64_t>(shared.f_blocks) * static_cast<int64_t>(shared.f_frsize);
  findings.add(
      "memory", "/dev/shm", bytes, format_size(bytes), bytes < kGiB ? Verdict::kWarning : Verdict::kOk,
      bytes < kGiB ? "too small for NCCL between several ranks: use docker run --shm-size=1g, or --ipc=host" : "");
}

void probe_job_sizes(Findings& findings, const std::string& folder) {
  int64_t memory = meminfo_bytes("MemAvailable"), limit = 0;
  if (absl::SimpleAtoi(detail::read_text("/sys/fs/cgroup/memory.max"), &limit)) memory = std::min(memory, limit);
  struct statvfs disk {};
  const bool known = statvfs(folder.c_str(), &disk) == 0;
  add_job_sizes(findings, memory,
                known ? static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize) : int64_t{-1});
}

void probe_limits(Findings& findings) {
  const auto limit = [&](const char* name, decltype(RLIMIT_NOFILE) kind, rlim_t least, bool in_bytes, Verdict verdict,
                         const char* hint) {
    rlimit value{};
    if (getrlimit(kind, &value) != 0) return;
    const bool unlimited = value.rlim_cur == RLIM_INFINITY, low = !unlimited && value.rlim_cur < least;
    const auto number = static_cast<int64_t>(value.rlim_cur);
    findings.add("limits", name, unlimited ? nlohmann::ordered_json() : nlohmann::ordered_json(number),
                 unlimited  ? "unlimited"
                 : in_bytes ? format_size(number)
                            : fmt::format("{}", number),
                 low ? verdict : Verdict::kOk, low ? hint : "");
  };
  limit("open files", RLIMIT_NOFILE, 1024, false, Verdict::kWarning,
        "data sets, logs and the sockets of many ranks need more: ulimit -n 65536");
  limit("locked memory", RLIMIT_MEMLOCK, 64 * kMiB, true, Verdict::kNote,
        "InfiniBand needs it unlimited: ulimit -l unlimited, or docker run --ulimit memlock=-1");
  limit("address space", RLIMIT_AS, RLIM_INFINITY, true, Verdict::kWarning,
        "CUDA and memory-mapped data sets reserve far more than they use: ulimit -v unlimited");
  limit("file size", RLIMIT_FSIZE, RLIM_INFINITY, true, Verdict::kWarning,
        "larger checkpoints cannot be saved: ulimit -f unlimited");
  limit("processes", RLIMIT_NPROC, 4096, false, Verdict::kWarning, "threads count too: ulimit -u 65536");
}

namespace {

std::string file_system_name(long type) {
  const std::map<long, std::string> names = {{0xEF53, "ext4"},        {0x58465342, "xfs"},    {0x9123683E, "btrfs"},
                                             {0x01021994, "tmpfs"},   {0x6969, "nfs"},        {0x65735546, "fuse"},
                                             {0x794c7630, "overlay"}, {0x0BD00BD0, "lustre"}, {0x2FC12FC1, "zfs"},
                                             {0xFF534D42, "cifs"},    {0x47504653, "gpfs"},   {0x01021997, "9p"}};
  const auto entry = names.find(type);
  return entry == names.end() ? fmt::format("0x{:x}", type) : entry->second;
}

/// Returns the largest files below `folder` until their sizes reach `bytes`. Looks at 10,000 entries at most.
std::vector<std::pair<fs::path, int64_t>> large_files(const fs::path& folder, int64_t bytes) {
  std::vector<std::pair<fs::path, int64_t>> files;
  std::error_code failed;
  fs::recursive_directory_iterator entry(folder, fs::directory_options::skip_permission_denied, failed);
  for (int seen = 0; !failed && entry != fs::recursive_directory_iterator() && seen < 10'000; ++seen) {
    std::error_code ignored;
    const auto size = entry->is_regular_file(ignored) ? entry->file_size(ignored) : 0;
    if (!ignored && size > 0) files.emplace_back(entry->path(), static_cast<int64_t>(size));
    entry.increment(failed);
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  int64_t sum = 0;
  size_t count = 0;
  while (count < files.size() && sum < bytes) sum += files[count++].second;
  files.resize(count);
  return files;
}

/// Reads at most `most` bytes of a file after dropping it from the page cache. Returns bytes and seconds; {0, 0} if it
/// cannot be opened.
std::pair<int64_t, double> read_cold(const std::string& path, int64_t most) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {0, 0};
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  std::vector<char> buffer(static_cast<size_t>(kMiB));
  const double start = seconds_now();
  int64_t bytes = 0;
  for (ssize_t size = 1; size > 0 && bytes < most; bytes += size) {
    size = ::read(file, buffer.data(), buffer.size());
    if (size < 0) break;
  }
  const double seconds = seconds_now() - start;
  close(file);
  return {bytes, seconds};
}

void add_speed(Findings& findings, const std::string& what, const std::string& name, int64_t bytes, double seconds) {
  const double speed = seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
  findings.add(
      what, name, speed,
      fmt::format("{}/s ({} in {:.2f} s)", format_size(static_cast<int64_t>(speed)), format_size(bytes), seconds));
}

/// Writes a temporary file, flushes it to the disk and reads it again. Adds both speeds.
void probe_with_file(Findings& findings, const std::string& what, const std::string& folder) {
  constexpr int64_t kBytes = 128 * kMiB;
  const auto directory = Fs::posix().open_directory(folder);
  if (!directory.ok()) return;
  const std::string name = temporary_name("doctor");
  {
    auto file = directory->create_file(name);
    if (!file.ok()) {
      findings.add(what, "write", nullptr, "not writable", Verdict::kWarning, "choose another --output_dir");
      return;
    }
    std::string block(static_cast<size_t>(kMiB), '\0');
    for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<char>(i * 2654435761u >> 13);
    const double start = seconds_now();
    bool written = true;
    for (int64_t done = 0; written && done < kBytes; done += kMiB) written = file->append(block).ok();
    written = written && file->sync().ok();
    if (written) {
      add_speed(findings, what, "write", kBytes, seconds_now() - start);
    } else {
      findings.add(what, "write", nullptr, "failed", Verdict::kWarning,
                   "a checkpoint would fail too; check whether the disk is full");
    }
    (void)file->close();
    if (written) {
      const auto [bytes, seconds] = read_cold(folder + "/" + name, kBytes);
      add_speed(findings, what, "read", bytes, seconds);
    }
  }
  (void)directory->remove_file(name);
}

}  // namespace

void probe_disk(Findings& findings, const std::string& what, const std::string& folder) {
  struct statfs info {};
  if (statfs(folder.c_str(), &info) != 0) {
    findings.add(what, "folder", folder, folder + ": cannot be opened", Verdict::kWarning, "check the path");
    return;
  }
  findings.add(what, "folder", folder, folder);
  const std::string kind = file_system_name(static_cast<long>(info.f_type));
  const bool remote = kind == "nfs" || kind == "cifs" || kind == "fuse" || kind == "9p";
  findings.add(what, "file system", kind, kind, remote ? Verdict::kNote : Verdict::kOk,
               remote ? "many small files are slow over a network: copy the data set to a local disk" : "");
  const int64_t free = static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_bsize);
  findings.add(what, "free", free, format_size(free), free < kGiB ? Verdict::kWarning : Verdict::kOk,
               free < kGiB ? "checkpoints may not fit: free some space, or use --keep_last 1" : "");
  constexpr int64_t kEnough = 16 * kMiB, kMost = 256 * kMiB;
  int64_t bytes = 0;
  double seconds = 0;
  for (const auto& [path, size] : large_files(folder, kMost)) {
    const auto [read, took] = read_cold(path.string(), kMost - bytes);
    bytes += read, seconds += took;
  }
  if (bytes >= kEnough) {
    add_speed(findings, what, "read", bytes, seconds);
  } else {
    probe_with_file(findings, what, folder);
  }
}

}  // namespace trainkit::tool
