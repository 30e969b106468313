#include "nccl_group.h"

#include <algorithm>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "sim.h"

namespace cuda_sim::nccl {

namespace {

ncclResult_t finish_starts(const std::vector<ThreadGroup::Start>& starts) {
  ncclResult_t first = ncclSuccess;
  for (const ThreadGroup::Start& start : starts) {
    const ncclResult_t error = start.comm->wait_for_ranks();
    if (error == ncclSuccess) continue;
    start.comm->abort();
    *start.result = nullptr;
    if (first == ncclSuccess) first = error;
  }
  return first;
}

ncclResult_t finish_splits(const std::vector<ThreadGroup::Split>& splits) {
  std::vector<ThreadGroup::Start> starts;
  ncclResult_t first = ncclSuccess;
  for (const ThreadGroup::Split& split : splits) {
    const CurrentDevice device(split.comm->device());
    std::shared_ptr<Comm> part;
    const ncclResult_t error = split.comm->finish_split(split.number, split.color, &part);
    *split.result = part ? part->handle() : nullptr;
    if (part) starts.push_back({part, split.result});
    if (first == ncclSuccess) first = error;
  }
  const ncclResult_t error = finish_starts(starts);
  return first == ncclSuccess ? error : first;
}

ncclResult_t enqueue(const std::shared_ptr<Comm>& comm, cudaStream_t stream, std::vector<Work> works) {
  const CurrentDevice device(comm->device());  // that of the default stream
  return comm->enqueue(stream, std::move(works));
}

/// Queues the messages of one communicator that begin at `issues[first]` as one work.
ncclResult_t enqueue_messages(const std::vector<ThreadGroup::Issue>& issues, size_t first) {
  const std::shared_ptr<Comm>& comm = issues[first].comm;
  std::vector<Work> works;
  for (size_t i = 0; i < issues.size(); ++i) {
    if (issues[i].comm != comm || !is_message(issues[i].work.call.op)) continue;
    if (i < first) return ncclSuccess;  // queued with the first one
    if (issues[i].stream != issues[first].stream)
      return refuse(ncclInvalidUsage, "the simulation needs one stream for the Sends and Receives of a group");
    works.push_back(issues[i].work);
  }
  return enqueue(comm, issues[first].stream, std::move(works));
}

bool are_captured_together(const std::vector<ThreadGroup::Issue>& issues) {
  const auto is_other = [&](const ThreadGroup::Issue& issue) { return issue.comm != issues.front().comm; };
  const auto is_captured = [](const ThreadGroup::Issue& issue) {
    return is_capturing(issue.stream) && !is_message(issue.work.call.op);
  };
  return std::any_of(issues.begin(), issues.end(), is_other) && std::all_of(issues.begin(), issues.end(), is_captured);
}

/// Captures the collectives of several devices. The nodes of a graph run one after the other, and each collective waits
/// for those of the other devices, so the first node runs all of them; the others only count.
ncclResult_t capture_together(const std::vector<ThreadGroup::Issue>& issues) {
  std::map<std::shared_ptr<Comm>, std::vector<Work>> by_comm;
  for (const ThreadGroup::Issue& issue : issues) by_comm[issue.comm].push_back(issue.work);
  const auto run_all = [by_comm] {
    std::vector<std::thread> threads;
    for (const auto& [comm, works] : by_comm) {
      threads.emplace_back([comm = comm, works = works] {
        for (const Work& work : works) comm->run_captured({work});
        count_device_time();
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  for (size_t i = 0; i < issues.size(); ++i) {
    const CurrentDevice device(issues[i].comm->device());
    const std::function<void()> run = i == 0 ? std::function<void()>(run_all) : [] {};
    if (const ncclResult_t error = issues[i].comm->enqueue(issues[i].stream, {issues[i].work}, run);
        error != ncclSuccess)
      return error;
  }
  return ncclSuccess;
}

/// Queues collectives before messages, as NCCL does.
ncclResult_t launch(const std::vector<ThreadGroup::Issue>& issues) {
  if (are_captured_together(issues)) return capture_together(issues);
  for (const ThreadGroup::Issue& issue : issues) {
    if (is_message(issue.work.call.op)) continue;
    if (const ncclResult_t error = enqueue(issue.comm, issue.stream, {issue.work}); error != ncclSuccess) return error;
  }
  for (size_t i = 0; i < issues.size(); ++i) {
    if (!is_message(issues[i].work.call.op)) continue;
    if (const ncclResult_t error = enqueue_messages(issues, i); error != ncclSuccess) return error;
  }
  return ncclSuccess;
}

}  // namespace

ThreadGroup& thread_group() {
  static thread_local ThreadGroup& group = *new ThreadGroup;
  return group;
}

ncclResult_t launch_group() {
  const ThreadGroup group = std::exchange(thread_group(), ThreadGroup{});
  if (group.error != ncclSuccess) {
    for (const ThreadGroup::Start& start : group.starts) {
      start.comm->abort();
      *start.result = nullptr;
    }
    return group.error;
  }
  if (!group.issues.empty()) count_nccl_group();
  if (const ncclResult_t error = finish_starts(group.starts); error != ncclSuccess) return error;
  if (const ncclResult_t error = finish_splits(group.splits); error != ncclSuccess) return error;
  return launch(group.issues);
}

ncclResult_t note_in_group(ncclResult_t error) {
  ThreadGroup& group = thread_group();
  if (group.depth > 0 && group.error == ncclSuccess) group.error = error;
  return error;
}

ncclResult_t refuse(ncclResult_t error, const std::string& text) {
  finding("nccl", text);
  set_last_error(text);
  return note_in_group(error);
}

CurrentDevice::CurrentDevice(int device) : before_(current_device()) {
  if (device != before_ && cudaSetDevice(device) != cudaSuccess) (void)cudaGetLastError();
}

CurrentDevice::~CurrentDevice() {
  if (current_device() != before_ && cudaSetDevice(before_) != cudaSuccess) (void)cudaGetLastError();
}

}  // namespace cuda_sim::nccl

extern "C" {

ncclResult_t ncclGroupStart() {
  ++cuda_sim::nccl::thread_group().depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  int& depth = cuda_sim::nccl::thread_group().depth;
  if (depth == 0) return cuda_sim::nccl::refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  return --depth > 0 ? ncclSuccess : cuda_sim::nccl::launch_group();
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t*) { return ncclInvalidUsage; }

}  // extern "C"
