#pragma once
// The calls of a thread since ncclGroupStart.
#include "nccl_comm.h"

namespace cuda_sim::nccl {

struct ThreadGroup {
  struct Issue {
    std::shared_ptr<Comm> comm;
    cudaStream_t stream;
    Work work;
  };
  struct Start {
    std::shared_ptr<Comm> comm;
    ncclComm_t* result;
  };
  struct Split {
    std::shared_ptr<Comm> comm;
    uint64_t number;
    int color;
    ncclComm_t* result;
  };

  int depth = 0;
  ncclResult_t error = ncclSuccess;  // the first error of its calls
  std::vector<Issue> issues;
  std::vector<Start> starts;
  std::vector<Split> splits;
};

ThreadGroup& thread_group();
/// Runs the calls of the thread's group, or none if one of them was an error.
ncclResult_t launch_group();

/// Also makes an error the group's error, if there is a group.
ncclResult_t note_in_group(ncclResult_t error);
/// Reports a call that is an error of the caller.
ncclResult_t refuse(ncclResult_t error, const std::string& text);

inline bool is_message(Op op) { return op == Op::kSend || op == Op::kRecv; }

/// Makes a device current for a scope.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  const int before_;
};

}  // namespace cuda_sim::nccl
