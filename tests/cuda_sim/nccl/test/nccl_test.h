#pragma once
// Shared by the tests of the simulated NCCL.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace nccl_test {

#define CHECK(condition)                                                                            \
  do {                                                                                              \
    if (!(condition)) {                                                                             \
      std::fprintf(stderr, "%s:%d: not true: %s; last error: %s\n", __FILE__, __LINE__, #condition, \
                   ncclGetLastError(nullptr));                                                      \
      _exit(1);                                                                                     \
    }                                                                                               \
  } while (false)
#define CHECK_NCCL(call) CHECK((call) == ncclSuccess)
#define CHECK_CUDA(call) CHECK((call) == cudaSuccess)

/// A rank's communicator, stream and memory.
struct Rank {
  int device = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;

  void open(int of) {
    device = of;
    CHECK_CUDA(cudaSetDevice(device));
    CHECK_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0));
  }
  template <typename T>
  T* put(const std::vector<T>& values) {
    CHECK_CUDA(cudaSetDevice(device));
    void* address = nullptr;
    CHECK_CUDA(cudaMalloc(&address, values.size() * sizeof(T)));
    CHECK_CUDA(cudaMemcpy(address, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return static_cast<T*>(address);
  }
  void sync() {
    CHECK_CUDA(cudaSetDevice(device));
    CHECK_CUDA(cudaStreamSynchronize(stream));
  }
  template <typename T>
  std::vector<T> get(const T* address, size_t count) {
    sync();
    std::vector<T> values(count);
    CHECK_CUDA(cudaMemcpy(values.data(), address, count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
  ncclResult_t error() {
    ncclResult_t result;
    CHECK_NCCL(ncclCommGetAsyncError(comm, &result));
    return result;
  }
};

inline std::vector<Rank> replicas(int count) {
  std::vector<Rank> ranks(static_cast<size_t>(count));
  std::vector<ncclComm_t> comms(ranks.size());
  for (int i = 0; i < count; ++i) ranks[static_cast<size_t>(i)].open(i);
  CHECK_NCCL(ncclCommInitAll(comms.data(), count, nullptr));
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i].comm = comms[i];
  return ranks;
}

inline bool says(const char* words) { return std::strstr(ncclGetLastError(nullptr), words) != nullptr; }

/// Returns whether all child processes end with code 0.
inline bool all_succeed(const std::vector<pid_t>& children) {
  bool good = true;
  for (pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    good &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return good;
}

/// Runs `body` for each rank in a separate process.
inline void processes(int count, const std::function<void(Rank&, int)>& body) {
  ncclUniqueId id;
  CHECK_NCCL(ncclGetUniqueId(&id));
  std::vector<pid_t> children;
  for (int rank = 0; rank < count; ++rank) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    Rank self;
    self.open(rank);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    CHECK_NCCL(ncclCommInitRankConfig(&self.comm, count, id, rank, &config));
    body(self, rank);
    _exit(0);
  }
  CHECK(all_succeed(children));
  CHECK(access((std::string("/dev/shm") + id.internal).c_str(), F_OK) != 0);
}
inline std::vector<float> ramp(size_t count, float first) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i % 1000);
  return values;
}

// The tests.
void types();
void one_process();
void several_processes();
void many_calls();
void two_streams();
void capture();
void eager_after_graph();
void split();
void both_send_first();
void refusals();
void mismatch();
void timeout();
void abort_releases();
void dead_peer();

}  // namespace nccl_test
