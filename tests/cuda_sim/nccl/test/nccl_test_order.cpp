#include "nccl_test.h"

namespace nccl_test {

// ---- order: streams, captures

void two_streams() {
  std::vector<Rank> ranks = replicas(2);
  std::vector<cudaStream_t> others;
  for (Rank& rank : ranks) {
    Rank other;
    other.open(rank.device);
    others.push_back(other.stream);
  }
  for (int round = 0; round < 50; ++round) {
    std::vector<float*> a, b;
    CHECK_NCCL(ncclGroupStart());
    for (size_t i = 0; i < 2; ++i) {
      a.push_back(ranks[i].put(std::vector<float>(3, 1.0F)));
      b.push_back(ranks[i].put(std::vector<float>(4, 1.0F)));
      CHECK_NCCL(ncclAllReduce(a[i], a[i], 3, ncclFloat, ncclSum, ranks[i].comm, ranks[i].stream));
      CHECK_NCCL(ncclAllReduce(b[i], b[i], 4, ncclFloat, ncclSum, ranks[i].comm, others[i]));
    }
    CHECK_NCCL(ncclGroupEnd());
    for (size_t i = 0; i < 2; ++i) {
      CHECK_CUDA(cudaSetDevice(ranks[i].device));
      CHECK_CUDA(cudaStreamSynchronize(others[i]));
      CHECK(ranks[i].get(a[i], 3) == std::vector<float>(3, 2.0F));
      CHECK(ranks[i].get(b[i], 4) == std::vector<float>(4, 2.0F));
    }
  }
}

void capture() {
  processes(2, [](Rank& self, int) {
    float* buffer = self.put(std::vector<float>(3, 1.0F));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK_CUDA(cudaStreamBeginCapture(self.stream, cudaStreamCaptureModeThreadLocal));
    CHECK_NCCL(ncclAllReduce(buffer, buffer, 3, ncclFloat, ncclSum, self.comm, self.stream));
    CHECK_CUDA(cudaStreamEndCapture(self.stream, &graph));
    CHECK_CUDA(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 3; ++i) {
      CHECK_CUDA(cudaGraphLaunch(exec, self.stream));
      CHECK_NCCL(ncclAllReduce(buffer, buffer, 3, ncclFloat, ncclAvg, self.comm, self.stream));
    }
    CHECK(self.get(buffer, 3) == std::vector<float>(3, 8.0F));
  });
}

/// Eager work that was queued before the graph's collective, and waits for it.
void eager_after_graph() {
  processes(2, [](Rank& self, int) {
    float* buffer = self.put(std::vector<float>(3, 1.0F));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK_CUDA(cudaStreamBeginCapture(self.stream, cudaStreamCaptureModeThreadLocal));
    CHECK_NCCL(ncclAllReduce(buffer, buffer, 3, ncclFloat, ncclSum, self.comm, self.stream));
    CHECK_CUDA(cudaStreamEndCapture(self.stream, &graph));
    CHECK_CUDA(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    Rank other;
    other.open(self.device);
    cudaEvent_t event;
    CHECK_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    for (int i = 0; i < 3; ++i) {
      CHECK_CUDA(cudaGraphLaunch(exec, self.stream));
      CHECK_CUDA(cudaEventRecord(event, self.stream));
      CHECK_CUDA(cudaStreamWaitEvent(other.stream, event, 0));
      CHECK_NCCL(ncclAllReduce(buffer, buffer, 3, ncclFloat, ncclSum, self.comm, other.stream));
      CHECK_CUDA(cudaEventRecord(event, other.stream));
      CHECK_CUDA(cudaStreamWaitEvent(self.stream, event, 0));
    }
    CHECK(self.get(buffer, 3) == std::vector<float>(3, 64.0F));
  });
}

void split() {
  processes(4, [](Rank& self, int rank) {
    ncclComm_t part = nullptr;
    CHECK_NCCL(ncclCommSplit(self.comm, rank == 3 ? NCCL_SPLIT_NOCOLOR : rank % 2, -rank, &part, nullptr));
    CHECK((part == nullptr) == (rank == 3));
    if (!part) return;
    int count = 0, number = -1;
    CHECK_NCCL(ncclCommCount(part, &count));
    CHECK_NCCL(ncclCommUserRank(part, &number));
    CHECK(count == (rank == 1 ? 1 : 2));
    CHECK(number == (rank == 0 ? 1 : 0));
    float* buffer = self.put(std::vector<float>(3, static_cast<float>(rank + 1)));
    CHECK_NCCL(ncclAllReduce(buffer, buffer, 3, ncclFloat, ncclSum, part, self.stream));
    CHECK(self.get(buffer, 3) == std::vector<float>(3, rank == 1 ? 2.0F : 4.0F));
    CHECK_NCCL(ncclCommDestroy(part));
  });
}

void both_send_first() {
  processes(2, [](Rank& self, int rank) {
    const size_t count = 300'000;
    float* mine = self.put(ramp(count, static_cast<float>(rank)));
    float* other = self.put(std::vector<float>(count));
    CHECK_NCCL(ncclGroupStart());
    CHECK_NCCL(ncclSend(mine, count, ncclFloat, 1 - rank, self.comm, self.stream));
    CHECK_NCCL(ncclSend(mine, 3, ncclFloat, 1 - rank, self.comm, self.stream));
    CHECK_NCCL(ncclRecv(other, count, ncclFloat, 1 - rank, self.comm, self.stream));
    CHECK_NCCL(ncclRecv(mine, 0, ncclFloat, rank, self.comm, self.stream));
    CHECK_NCCL(ncclSend(mine, 0, ncclFloat, rank, self.comm, self.stream));
    float* three = self.put(std::vector<float>(3));
    CHECK_NCCL(ncclRecv(three, 3, ncclFloat, 1 - rank, self.comm, self.stream));
    CHECK_NCCL(ncclGroupEnd());
    CHECK(self.get(other, count) == ramp(count, static_cast<float>(1 - rank)));
    CHECK(self.get(three, 3) == ramp(3, static_cast<float>(1 - rank)));
  });
}

}  // namespace nccl_test
