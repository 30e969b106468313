#pragma once
// A communicator of one rank: its state, and its work in the streams' threads.
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>

#include "nccl_segment.h"

namespace cuda_sim::nccl {

/// A factor of ncclRedOpCreatePreMulSum: its value, or its device address.
struct Factor {
  std::array<std::byte, 8> value{};
  const void* address = nullptr;
  int datatype = -1;
};

/// A call and its buffers, as device addresses.
struct Work {
  Call call;
  const void* send = nullptr;
  void* recv = nullptr;
  std::optional<Factor> factor;
};

class Comm {
 public:
  /// Joins as a rank on the current device. Does not wait for the other ranks.
  static std::shared_ptr<Comm> join(const std::string& name, int ranks, int rank, std::string* error);
  /// The communicator of a handle; nullptr if it does not exist or was destroyed.
  static std::shared_ptr<Comm> find(ncclComm_t handle);

  Comm(std::shared_ptr<Clique> clique, int ranks, int rank, int device);

  ncclComm_t handle() { return reinterpret_cast<ncclComm_t>(this); }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int device() const { return device_; }
  ncclResult_t error() const { return error_; }
  bool is_finalized() const { return finalized_; }

  /// Waits until all ranks have joined.
  ncclResult_t wait_for_ranks();
  /// Queues works: either sends and receives or a single collective. This communicator's device must be current.
  /// A captured work calls `run_instead`, if given.
  ncclResult_t enqueue(cudaStream_t stream, std::vector<Work> works, std::function<void()> run_instead = nullptr);
  /// Runs a work of a CUDA graph now.
  void run_captured(const std::vector<Work>& works) { run(works, std::nullopt); }
  /// Waits for the queued work, and refuses further work.
  ncclResult_t finalize();
  /// Releases the handle. A communicator that is destroyed has finished its work; one that is aborted stops it.
  void destroy();
  void abort();

  /// Announces how to split the communicator; finish_split waits for the other ranks' announcements. Each returns the
  /// split number that the other needs.
  uint64_t start_split(int color, int key);
  ncclResult_t finish_split(uint64_t number, int color, std::shared_ptr<Comm>* part);

  int add_factor(const Factor& factor);
  bool remove_factor(int redop);
  std::optional<Factor> factor(int redop);

 private:
  void run(const std::vector<Work>& works, std::optional<uint64_t> ticket);
  bool take_turn(std::optional<uint64_t> ticket, const Call& call);

  void exchange(const Work& work);
  bool step(const Work& work, size_t offset, size_t count, bool first);
  void pack(const Work& work, size_t offset, size_t count);
  void unpack(const Work& work, size_t offset, size_t count);
  std::vector<int> missing_for_step(const Call& call, bool first);
  bool all_complete_step(const Call& call);

  struct Transfer;  // an active Send or Recv
  void exchange_messages(const std::vector<Work>& works);
  std::vector<int> progress(std::vector<Transfer>& transfers);
  bool send_step(Transfer& transfer);
  bool receive_step(Transfer& transfer);

  /// Waits until `missing` returns no rank. Returns false if that is impossible; then error() gives the reason.
  bool wait(const Call& call, const std::function<std::vector<int>()>& missing);
  std::string why_never(const std::vector<int>& ranks, bool checks_processes);
  std::string who_is_late(const std::vector<int>& ranks, const Call& call, long seconds);
  void break_with(const std::string& text);
  void end_broken(const std::string& text);
  /// Reports that another rank has ended or stopped. This is not a fault of the program, for example in a test of that
  /// case.
  void fail_remotely(const std::string& text);
  void fail(ncclResult_t code, const std::string& text);
  bool stopped() const { return error_ != ncclSuccess; }
  std::string name_of_rank(int rank);

  const std::shared_ptr<Clique> clique_;
  const int ranks_, rank_, device_;
  std::atomic<ncclResult_t> error_{ncclSuccess};
  std::atomic<bool> finalized_{false}, destroyed_{false};

  std::mutex issue_;  // tickets have the order of the queues
  uint64_t next_ticket_ = 0;

  // One work runs at a time. Eager work runs in the order of the calls. Work of a CUDA graph runs when its stream
  // reaches it: possibly before eager work that was queued earlier on a stream that waits for the graph.
  std::mutex turn_;
  std::condition_variable turn_changed_;
  bool running_ = false;
  uint64_t serving_ = 0, pending_ = 0;

  uint64_t steps_ = 0;  // number of finished collectives of this rank

  std::mutex factors_mutex_;
  std::vector<std::optional<Factor>> factors_;
};

/// Stores a text for ncclGetLastError.
void set_last_error(const std::string& text);
const char* last_error();

}  // namespace cuda_sim::nccl
