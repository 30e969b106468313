// Settings, findings and counts.
#include <dlfcn.h>
#include <execinfo.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include "state.h"

namespace cuda_sim {

namespace {

std::mutex& report_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

/// Settings changed by a test.
std::map<std::string, const char*>& changed_settings() {
  static auto* const settings = new std::map<std::string, const char*>;
  return *settings;
}

std::string& texts_of_findings() {
  static auto* const texts = new std::string;
  return *texts;
}

}  // namespace

const char* setting(const char* name, const char* otherwise) {
  {
    const std::lock_guard lock(report_mutex());
    const auto changed = changed_settings().find(name);
    if (changed != changed_settings().end()) return changed->second;
  }
  const char* value = getenv((std::string("CUDA_SIM_") + name).c_str());
  return value ? value : otherwise;
}

long setting(const char* name, long otherwise) {
  const char* value = setting(name);
  return value ? strtol(value, nullptr, 10) : otherwise;
}

void note(const std::string& text) {
  static const bool is_verbose = setting("VERBOSE", 0L) != 0;
  if (is_verbose) fprintf(stderr, "cuda_sim: %s\n", text.c_str());
}

void finding(const std::string& kind, const std::string& text) {
  const bool aborts = setting("ABORT", 0L) != 0;
  static auto* const printed = new std::set<std::string>;
  const std::lock_guard lock(report_mutex());
  ++counts().findings;
  texts_of_findings() += kind + ": " + text + "\n";
  if (printed->size() < 40 && printed->insert(kind + text).second) {
    fprintf(stderr, "cuda_sim: %s: %s\n", kind.c_str(), text.c_str());
  }
  if (aborts) {
    void* frames[64];
    backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
    abort();
  }
}

Counts& counts() {
  static auto* const made = new Counts;
  return *made;
}

uint64_t processor_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

void count_device_time() { counts().stream_ns += processor_ns(CLOCK_THREAD_CPUTIME_ID); }
void count_nccl_call(uint64_t bytes) {
  ++counts().nccl_calls;
  counts().nccl_bytes += bytes;
}
void count_nccl_group() { ++counts().nccl_groups; }

namespace {

void print_counts(FILE* to) {
  const Counts& c = counts();
  const auto number = [&](const char* name, uint64_t value, const char* end = ", ") {
    fprintf(to, "\"%s\": %llu%s", name, static_cast<unsigned long long>(value), end);
  };
  fprintf(to, "{");
  number("launches", c.launches);
  number("graph_launches", c.graph_launches);
  number("to_device", c.to_device);
  number("to_host", c.to_host);
  number("on_device", c.on_device);
  number("between_devices", c.between_devices);
  number("fills", c.fills);
  number("bytes_to_device", c.bytes_to_device);
  number("bytes_to_host", c.bytes_to_host);
  number("pageable", c.pageable);
  number("stream_syncs", c.stream_syncs);
  number("event_syncs", c.event_syncs);
  number("device_syncs", c.device_syncs);
  number("nccl_calls", c.nccl_calls);
  number("nccl_groups", c.nccl_groups);
  number("nccl_bytes", c.nccl_bytes);
  number("mallocs", c.mallocs);
  number("frees", c.frees);
  number("host_allocations", c.host_allocations);
  number("capture_calls", c.capture_calls);
  number("findings", c.findings);
  // Of the process without the device's part: what a step costs the host.
  number("host_us", (processor_ns(CLOCK_PROCESS_CPUTIME_ID) - c.stream_ns) / 1000, "}\n");
}

/// At process exit: writes the counts to CUDA_SIM_REPORT, and exits with code 86 if there were findings.
__attribute__((destructor)) void end() {
  if (const char* path = setting("REPORT")) {
    if (FILE* file = fopen(path, "a")) {
      print_counts(file);
      fclose(file);
    }
  }
  const uint64_t found = counts().findings;
  if (found == 0) return;
  fprintf(stderr, "cuda_sim: %llu findings\n", static_cast<unsigned long long>(found));
  fflush(nullptr);
  _exit(86);
}

[[maybe_unused]] const int registered = at_quick_exit(end);  // a program may end without destructors

}  // namespace
}  // namespace cuda_sim

// For tests and benchmarks, which find these with dlsym.
extern "C" {

/// Writes the counts as a JSON object to `text`.
void cuda_sim_counts(char* text, size_t size) {
  FILE* memory = fmemopen(text, size, "w");
  cuda_sim::print_counts(memory);
  fclose(memory);
}

/// Sets CUDA_SIM_<name>. Strings returned before stay valid.
void cuda_sim_set(const char* name, const char* value) {
  const std::lock_guard lock(cuda_sim::report_mutex());
  cuda_sim::changed_settings()[name] = strdup(value);
}

/// The texts of all findings since the last call, one per line; they no longer affect the exit code.
void cuda_sim_take_findings(char* text, size_t size) {
  const std::lock_guard lock(cuda_sim::report_mutex());
  snprintf(text, size, "%s", cuda_sim::texts_of_findings().c_str());
  cuda_sim::texts_of_findings().clear();
  cuda_sim::counts().findings = 0;
}

}  // extern "C"
