#include "train/records/step_profile.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/distributed/process_group.h"

// Note [One time line]
// ~~~~~~~~~~~~~~~~~~~~
// Kineto numbers processes by the operating system's ids, which may be equal on two hosts, and names threads by number.
// Each rank therefore renumbers its events: process 1000 * rank holds its threads, 1000 * rank + 1 + N the streams of
// its GPU N; threads get the names that the kernel knows ("trainkit-loader"). Time stamps count from a constant base in
// all processes, so files of several ranks are joined by appending their events. Clocks of several hosts may differ.

namespace trainkit {
namespace {

using Json = nlohmann::json;
namespace profiler = torch::autograd::profiler;
namespace impl = torch::profiler::impl;

constexpr int64_t kIdsPerRank = 1000;
constexpr int64_t kMaxBytes = int64_t{4} << 30;

std::set<impl::ActivityType> activities(at::Device device) {
  std::set<impl::ActivityType> types = {impl::ActivityType::CPU};
  if (device.is_cuda()) types.insert(impl::ActivityType::CUDA);
  return types;
}

/// The kernel's name of a thread of this process; empty if it has ended.
std::string thread_name(int64_t id) {
  std::string name;
  std::getline(std::ifstream("/proc/self/task/" + std::to_string(id) + "/comm"), name);
  return name;
}

Json metadata(const char* what, int64_t process, int64_t thread, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", process}, {"tid", thread}, {"args", {{"name", name}}}};
}

bool is_on_gpu(const std::string& category) { return category == "kernel" || category.starts_with("gpu_"); }

/// Returns the events of this rank with the numbers of Note [One time line].
Json events_of_rank(const Json& trace, int64_t rank) {
  Json events = Json::array();
  std::map<std::pair<int64_t, int64_t>, std::string> threads;
  std::map<int64_t, std::string> processes;
  for (Json event : trace.at("traceEvents")) {
    const std::string phase = event.value("ph", ""), category = event.value("cat", "");
    // Complete events and the arrows between them; not Kineto's own metadata, which has the old numbers.
    if (phase != "X" && phase != "s" && phase != "f") continue;
    if (category == "Trace" || !event.contains("tid") || !event["tid"].is_number()) continue;
    const bool on_gpu = is_on_gpu(category);
    const int64_t gpu = on_gpu && event.value("pid", Json()).is_number() ? event["pid"].get<int64_t>() : 0;
    const int64_t process = kIdsPerRank * rank + (on_gpu ? 1 + gpu : 0), thread = event["tid"].get<int64_t>();
    event["pid"] = process;
    processes.emplace(process, on_gpu ? fmt::format("rank {}, GPU {}", rank, gpu) : fmt::format("rank {}", rank));
    threads.emplace(std::pair(process, thread), on_gpu ? fmt::format("stream {}", thread) : thread_name(thread));
    events.push_back(std::move(event));
  }
  for (const auto& [process, name] : processes) events.push_back(metadata("process_name", process, 0, name));
  for (const auto& [ids, name] : threads) {
    if (!name.empty()) events.push_back(metadata("thread_name", ids.first, ids.second, name));
  }
  return events;
}

std::string file_of_rank(int64_t rank) { return fmt::format("profile.rank{}.json", rank); }

absl::Status write_trace(const std::string& path, const Json& events) {
  const Json trace = {{"displayTimeUnit", "ms"}, {"traceEvents", events}};
  return write_file_atomically(Fs::posix(), path, trace.dump(-1, ' ', false, Json::error_handler_t::replace));
}

absl::StatusOr<Json> read_trace(const std::string& path) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string text, Fs::posix().read_file(path, kMaxBytes));
  Json trace = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (trace.is_object() && trace.contains("traceEvents") && trace["traceEvents"].is_array()) return trace;
  return to_status({.exit_code = ExitCode::kStorage,
                    .id = "storage.profile",
                    .where = path,
                    .problem = "LibTorch's profiler wrote no trace"});
}

/// Ends LibTorch's profiler and returns the events of this rank.
absl::StatusOr<Json> take_events(const std::string& folder, int64_t rank) {
  const std::string raw = folder + "/" + temporary_name("profile.json");
  profiler::disableProfiler()->save(raw);
  const auto trace = read_trace(raw);
  std::error_code ignored;
  std::filesystem::remove(raw, ignored);
  TRAINKIT_RETURN_IF_ERROR(trace.status());
  return events_of_rank(*trace, rank);
}

/// Appends the events that the other ranks wrote to `folder`, and removes their files. Ranks on a host with a folder of
/// its own keep their file there.
void join_ranks(const std::string& folder, int64_t ranks, Json& events) {
  for (int64_t rank = 1; rank < ranks; ++rank) {
    const std::string path = folder + "/" + file_of_rank(rank);
    const auto trace = read_trace(path);
    if (!trace.ok()) continue;
    for (const Json& event : trace->at("traceEvents")) events.push_back(event);
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
}

}  // namespace

StepProfile::StepProfile(std::string folder, int64_t first, at::Device device, ProcessGroup* group)
    : folder_(std::move(folder)), first_(first), device_(device), group_(group) {
  if (first > 0)
    setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);  // else it prints its stages, and that there is no GPU
}

StepProfile::~StepProfile() {
  if (!is_recording()) return;
  try {
    profiler::disableProfiler();
  } catch (const std::exception&) {
    // The run ends with another error.
  }
}

bool StepProfile::begin_step(int64_t step) {
  if (is_recording()) return step >= recording_from_ + kSteps;
  if (first_ == 0 || step < first_) return false;
  first_ = 0;
  impl::ExperimentalConfig all_threads;
  all_threads.profile_all_threads = true;
  const impl::ProfilerConfig config(impl::ProfilerState::KINETO, /*report_input_shapes=*/true, /*profile_memory=*/false,
                                    /*with_stack=*/false, /*with_flops=*/false, /*with_modules=*/false, all_threads);
  profiler::prepareProfiler(config, activities(device_));
  profiler::enableProfiler(config, activities(device_));
  recording_from_ = step;
  return false;
}

absl::StatusOr<std::string> StepProfile::write(int64_t last_step) {
  const int64_t rank = group_ ? group_->rank() : 0, first_step = std::exchange(recording_from_, 0);
  absl::StatusOr<Json> events = take_events(folder_, rank);
  absl::Status written = events.status();
  if (written.ok() && rank > 0) written = write_trace(folder_ + "/" + file_of_rank(rank), *events);
  if (group_) TRAINKIT_RETURN_IF_ERROR(group_->all_reduce(at::zeros({1}, at::kDouble), "the profile"));
  TRAINKIT_RETURN_IF_ERROR(written);
  const std::string path = folder_ + "/profile.json";
  if (rank == 0) {
    if (group_) join_ranks(folder_, group_->world_size(), *events);
    TRAINKIT_RETURN_IF_ERROR(write_trace(path, *events));
  }
  return fmt::format("wrote {}: steps {} to {}; open it at https://ui.perfetto.dev", path, first_step, last_step);
}

}  // namespace trainkit
