// Collectives: steps in which each rank writes a chunk, waits for the others, and reads their chunks.
#include <algorithm>
#include <cstring>

#include "nccl_comm.h"
#include "sim.h"

namespace cuda_sim::nccl {

namespace {

/// ReduceScatter and AlltoAll have one piece per rank.
bool has_pieces(Op op) { return op == Op::kReduceScatter || op == Op::kAlltoAll; }

std::byte* host(const void* device_memory) { return static_cast<std::byte*>(backing(device_memory)); }

}  // namespace

void Comm::exchange(const Work& work) {
  ++clique_->slot(rank_).calls;
  const size_t pieces = has_pieces(work.call.op) ? static_cast<size_t>(ranks_) : 1;
  const size_t most = kChunkBytes / pieces / type_bytes(work.call.datatype);
  for (size_t offset = 0; offset < work.call.count; offset += most)
    if (!step(work, offset, std::min(most, work.call.count - offset), offset == 0)) return;
}

bool Comm::step(const Work& work, size_t offset, size_t count, bool first) {
  const bool may_write = wait(work.call, [this] {
    std::vector<int> readers;
    for (int rank = 0; rank < ranks_; ++rank)
      if (clique_->slot(rank).read < steps_) readers.push_back(rank);
    return readers;
  });
  if (!may_write) return false;
  pack(work, offset, count);
  Slot& slot = clique_->slot(rank_);
  if (first) slot.call = work.call;
  slot.written = steps_ + 1;
  clique_->wake();
  if (!wait(work.call, [&] { return missing_for_step(work.call, first); })) return false;
  if (!all_complete_step(work.call)) return false;
  unpack(work, offset, count);
  slot.read = ++steps_;
  clique_->wake();
  return true;
}

std::vector<int> Comm::missing_for_step(const Call& call, bool first) {
  std::vector<int> missing;
  std::string calls;
  bool differ = false;
  for (int rank = 0; rank < ranks_; ++rank) {
    const Slot& slot = clique_->slot(rank);
    if (slot.written <= steps_) {
      missing.push_back(rank);
    } else if (first) {
      calls += (calls.empty() ? "rank " : ", rank ") + std::to_string(rank) + " calls " + describe(slot.call);
      differ |= slot.call != call;
    }
  }
  if (!differ) return missing;
  break_with(calls + "; call " + std::to_string(clique_->slot(rank_).calls) + " of the communicator");
  return {};
}

/// Returns whether no rank has stopped within the step; otherwise its result is invalid.
bool Comm::all_complete_step(const Call& call) {
  for (int rank = 0; rank < ranks_; ++rank) {
    Slot& slot = clique_->slot(rank);
    const State state = slot.state;
    if (rank == rank_ || (state != State::kAborted && state != State::kFailed) || slot.read > steps_) continue;
    if (const std::string text = clique_->broken(); !text.empty()) {
      end_broken(text);
    } else {
      fail_remotely(why_never({rank}, false) + "; rank " + std::to_string(rank_) + " needs it in " + describe(call));
    }
    return false;
  }
  return !stopped();
}

void Comm::pack(const Work& work, size_t offset, size_t count) {
  const Call& call = work.call;
  if (call.op == Op::kBroadcast && rank_ != call.root) return;
  const size_t size = type_bytes(call.datatype);
  const size_t pieces = has_pieces(call.op) ? static_cast<size_t>(ranks_) : 1;
  std::byte* chunk = clique_->segment().chunks[rank_];
  const std::byte* send = host(work.send);
  for (size_t piece = 0; piece < pieces; ++piece)
    std::memcpy(chunk + piece * count * size, send + (piece * call.count + offset) * size, count * size);
  if (!work.factor) return;
  const void* scalar = work.factor->value.data();
  if (const void* address = work.factor->address) {
    scalar = host(address);
    if (!scalar) scalar = address;  // page-locked memory
  }
  multiply(call.datatype, chunk, pieces * count, static_cast<const std::byte*>(scalar));
}

void Comm::unpack(const Work& work, size_t offset, size_t count) {
  const Call& call = work.call;
  const size_t size = type_bytes(call.datatype), bytes = count * size;
  const auto chunk = [&](int rank) -> const std::byte* { return clique_->segment().chunks[rank]; };
  const bool is_root = rank_ == call.root;
  if (call.op == Op::kReduce && !is_root) return;
  if (call.op == Op::kBroadcast && is_root && work.send == work.recv) return;
  std::byte* recv = host(work.recv);

  if (call.op == Op::kBroadcast) {
    std::memcpy(recv + offset * size, chunk(call.root), bytes);
  } else if (call.op == Op::kAllGather || call.op == Op::kAlltoAll) {
    const size_t mine = call.op == Op::kAlltoAll ? static_cast<size_t>(rank_) * bytes : 0;
    for (int rank = 0; rank < ranks_; ++rank)
      std::memcpy(recv + (static_cast<size_t>(rank) * call.count + offset) * size, chunk(rank) + mine, bytes);
  } else {
    const size_t mine = call.op == Op::kReduceScatter ? static_cast<size_t>(rank_) * bytes : 0;
    std::vector<const std::byte*> sources;
    for (int rank = 0; rank < ranks_; ++rank) sources.push_back(chunk(rank) + mine);
    reduce(call.datatype, call.redop, sources, recv + offset * size, count);
  }
}

}  // namespace cuda_sim::nccl
