#include "nccl_test.h"

namespace nccl_test {

// ---- faults

void refusals() {
  std::vector<Rank> ranks = replicas(2);
  float* buffer = ranks[0].put(std::vector<float>(10));
  float* other = ranks[1].put(std::vector<float>(10));
  const ncclComm_t comm = ranks[0].comm;
  const cudaStream_t stream = ranks[0].stream;
  float on_host[10];
  CHECK(ncclAllReduce(on_host, buffer, 10, ncclFloat, ncclSum, comm, stream) == ncclInvalidArgument);
  CHECK(says("the send buffer is no device memory"));
  CHECK(ncclAllReduce(buffer, other, 10, ncclFloat, ncclSum, comm, stream) == ncclInvalidArgument);
  CHECK(says("the receive buffer is on CUDA device 1"));
  CHECK(ncclAllReduce(buffer, buffer, 1 << 22, ncclFloat, ncclSum, comm, stream) == ncclInvalidArgument);
  CHECK(says("expected at least 16777216"));
  CHECK(ncclAllReduce(buffer, buffer + 1, 5, ncclFloat, ncclSum, comm, stream) == ncclInvalidArgument);
  CHECK(says("overlap"));
  CHECK(ncclAllReduce(buffer, buffer, 10, ncclFloat, ncclSum, comm, ranks[1].stream) == ncclInvalidArgument);
  CHECK(says("stream"));
  CHECK(ncclBroadcast(buffer, buffer, 10, ncclFloat, 2, comm, stream) == ncclInvalidArgument);
  CHECK_NCCL(ncclGroupStart());
  CHECK(ncclAllReduce(on_host, buffer, 10, ncclFloat, ncclSum, comm, stream) == ncclInvalidArgument);
  CHECK_NCCL(ncclAllReduce(buffer, buffer, 10, ncclFloat, ncclSum, comm, stream));
  CHECK(ncclGroupEnd() == ncclInvalidArgument);
  int twice[] = {0, 0};
  ncclComm_t comms[2];
  CHECK(ncclCommInitAll(comms, 2, twice) == ncclInvalidUsage);
  CHECK(says("ranks 0 and 1 both use CUDA device 0"));
}

void mismatch() {
  processes(2, [](Rank& self, int rank) {
    float* buffer = self.put(std::vector<float>(100));
    CHECK_NCCL(ncclAllReduce(buffer, buffer, 100, ncclFloat, ncclSum, self.comm, self.stream));
    if (rank == 0) CHECK_NCCL(ncclAllReduce(buffer, buffer, 100, ncclFloat, ncclSum, self.comm, self.stream));
    if (rank == 1) CHECK_NCCL(ncclBroadcast(buffer, buffer, 3, ncclFloat, 0, self.comm, self.stream));
    self.sync();
    CHECK(self.error() == ncclInvalidUsage);
    CHECK(says("rank 0 calls AllReduce of 100 float (sum), rank 1 calls Broadcast of 3 float from root 0; call 2 of"));
    CHECK(ncclAllReduce(buffer, buffer, 100, ncclFloat, ncclSum, self.comm, self.stream) == ncclInvalidUsage);
    CHECK_NCCL(ncclCommDestroy(self.comm));
  });
  std::vector<Rank> ranks = replicas(2);
  CHECK_NCCL(ncclGroupStart());
  for (size_t i = 0; i < 2; ++i) {
    float* buffer = ranks[i].put(std::vector<float>(100));
    CHECK_NCCL(i == 0 ? ncclSend(buffer, 3, ncclFloat, 1, ranks[i].comm, ranks[i].stream)
                      : ncclRecv(buffer, 4, ncclFloat, 0, ranks[i].comm, ranks[i].stream));
  }
  CHECK_NCCL(ncclGroupEnd());
  for (Rank& rank : ranks) {
    rank.sync();
    CHECK(rank.error() == ncclInvalidUsage);
  }
  CHECK(says("rank 0 calls Send of 3 float to rank 1, rank 1 calls Recv of 4 float from rank 0"));
}

void timeout() {
  setenv("CUDA_SIM_NCCL_TIMEOUT", "1", 1);
  processes(3, [](Rank& self, int rank) {
    float* buffer = self.put(std::vector<float>(100));
    CHECK_NCCL(ncclAllReduce(buffer, buffer, 100, ncclFloat, ncclSum, self.comm, self.stream));
    self.sync();
    if (rank == 2) {
      std::this_thread::sleep_for(std::chrono::seconds(2));
      CHECK_NCCL(ncclAllReduce(buffer, buffer, 7, ncclFloat, ncclSum, self.comm, self.stream));
    } else {
      CHECK_NCCL(ncclAllReduce(buffer, buffer, 7, ncclFloat, ncclSum, self.comm, self.stream));
    }
    self.sync();
    CHECK(self.error() == ncclRemoteError);
    if (rank == 2)
      CHECK(says("rank 0 (pid") && says("stopped with an error; rank 2 needs it in AllReduce of 7 float (sum)"));
    if (rank != 2) CHECK(says("waited 1 s in AllReduce of 7 float (sum), call 2 of the communicator, for rank 2 (pid"));
    if (rank != 2) CHECK(says("which has finished 1 collectives"));
  });
  ncclUniqueId id;
  CHECK_NCCL(ncclGetUniqueId(&id));
  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, 2, id, 1) == ncclRemoteError);
  CHECK(comm == nullptr && says("for rank 0, which has not joined"));
  CHECK(access((std::string("/dev/shm") + id.internal).c_str(), F_OK) != 0);
}

void abort_releases() {
  processes(2, [](Rank& self, int rank) {
    float* buffer = self.put(std::vector<float>(100, 5.0F));
    CHECK_NCCL(ncclAllReduce(buffer, buffer, 100, ncclFloat, ncclSum, self.comm, self.stream));
    self.sync();  // rank 0 may abort before rank 1 has finished
    if (rank == 0) {
      CHECK_NCCL(ncclRecv(buffer, 3, ncclFloat, 1, self.comm, self.stream));
      std::thread([comm = self.comm] {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        CHECK_NCCL(ncclCommAbort(comm));
      }).join();
      self.sync();
    } else {
      CHECK(self.error() == ncclSuccess);
      CHECK_NCCL(ncclAllReduce(buffer, buffer, 100, ncclFloat, ncclSum, self.comm, self.stream));
      CHECK_NCCL(ncclAllReduce(buffer, buffer, 100, ncclFloat, ncclSum, self.comm, self.stream));
      self.sync();
      CHECK(self.error() == ncclRemoteError);
      CHECK(says("rank 0 (pid") && says("aborted its communicator"));
    }
    CHECK(self.get(buffer, 100) == std::vector<float>(100, 10.0F));
  });
}

void dead_peer() {
  const auto start = std::chrono::steady_clock::now();
  processes(3, [](Rank& self, int rank) {
    float* buffer = self.put(std::vector<float>(100));
    CHECK_NCCL(ncclAllReduce(buffer, buffer, 100, ncclFloat, ncclSum, self.comm, self.stream));
    self.sync();
    if (rank == 1) _exit(0);  // a zombie until its parent waits
    if (rank == 2) execl("/bin/sleep", "sleep", "2", nullptr);
    CHECK_NCCL(ncclAllReduce(buffer, buffer, 100, ncclFloat, ncclSum, self.comm, self.stream));
    self.sync();
    CHECK(self.error() == ncclRemoteError);
    CHECK(says("the process of rank") && says("has ended; rank 0 waits for it in AllReduce of 100 float"));
  });
  processes(2, [](Rank& self, int rank) {
    if (rank == 1) execl("/bin/sleep", "sleep", "2", nullptr);
    float* buffer = self.put(std::vector<float>(100));
    CHECK_NCCL(ncclRecv(buffer, 100, ncclFloat, 1, self.comm, self.stream));
    self.sync();
    CHECK(self.error() == ncclRemoteError);
  });
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

}  // namespace nccl_test
