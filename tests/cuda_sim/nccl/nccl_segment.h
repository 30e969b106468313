#pragma once
// The memory shared by the ranks of a communicator, in one process or in several.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "nccl_types.h"

namespace cuda_sim::nccl {

constexpr int kMaxRanks = 32;
constexpr size_t kChunkBytes = size_t{1} << 20;    // of a rank per step of a collective
constexpr size_t kMessageBytes = size_t{1} << 18;  // of a Send per step
constexpr int kSplits = 8;                         // a group has fewer calls of ncclCommSplit

enum class State : int32_t { kAbsent, kPresent, kAborted, kFailed, kDestroyed };

/// A rank. A collective takes one or more steps; a rank writes its chunk of a step when all ranks have read the
/// previous one.
struct alignas(64) Slot {
  std::atomic<State> state;
  std::atomic<int32_t> pid;
  char device[64];                // nvidia-smi's number
  std::atomic<uint64_t> written;  // steps
  std::atomic<uint64_t> read;     // steps
  Call call;                      // of the last step that `written` counts
  std::atomic<uint64_t> calls;    // collectives that this rank has begun
  std::atomic<uint64_t> now[3];   // a Call: the current operation of its stream, for messages
  std::atomic<uint64_t> splits;
  struct {
    int32_t color, key;
  } split[kSplits];
};

/// Messages from one rank to another.
struct alignas(64) Channel {
  std::atomic<uint64_t> sent;   // steps
  std::atomic<uint64_t> taken;  // steps
  Call message;
};

/// Its initial state is all zeros. Untouched pages take no memory.
struct Segment {
  std::atomic<uint32_t> changes;  // a futex: incremented by each change that a rank may wait for
  std::atomic<int32_t> ranks;
  std::atomic<int32_t> joined;
  std::atomic<int32_t> broken;  // 1: a rank writes the text; 2: the text is complete
  char broken_text[1024];
  Slot slots[kMaxRanks];
  Channel channels[kMaxRanks][kMaxRanks];  // [from][to]
  alignas(4096) std::byte chunks[kMaxRanks][kChunkBytes];
  std::byte messages[kMaxRanks][kMaxRanks][kMessageBytes];
};

/// A segment mapped in this process, for all its ranks of the communicator.
class Clique {
 public:
  /// Opens or creates the segment of a unique id; returns nullptr and an error text on failure.
  static std::shared_ptr<Clique> open(const std::string& name, int ranks, std::string* error);
  static std::string new_name();

  Clique(std::string name, int file, Segment* segment);
  ~Clique();
  Clique(const Clique&) = delete;
  Clique& operator=(const Clique&) = delete;

  /// Takes the slot of a rank; returns an error text if that is impossible. The last rank to join removes the segment's
  /// name.
  std::string join(int rank, int device);
  void remove_name();
  /// Ranks that use the same device, as a text; empty if there are none.
  std::string shared_device();

  const std::string& name() const { return name_; }
  Segment& segment() { return *segment_; }
  Slot& slot(int rank) { return segment_->slots[rank]; }

  void wake();
  /// Sleeps until `changes` differs from `seen`, at most some milliseconds.
  void sleep(uint32_t seen);

  void set_now(int rank, const Call& call);
  Call now(int rank);
  /// Returns whether the process of a rank has ended or executes another program.
  bool is_gone(int rank);

  /// Ends the work of all ranks with a text. The first text is kept.
  void set_broken(const std::string& text);
  /// Empty unless a rank called set_broken.
  std::string broken();
  /// True for the first call in this process.
  bool first_to_report() { return !reported_.exchange(true); }

 private:
  const std::string name_;
  const int file_;
  Segment* const segment_;
  std::atomic<bool> reported_{false};
};

}  // namespace cuda_sim::nccl
