// Send and Recv. The messages of a group progress together, so that two ranks may both send first.
#include <algorithm>
#include <cstring>

#include "nccl_comm.h"
#include "sim.h"

namespace cuda_sim::nccl {

struct Comm::Transfer {
  Call call;
  std::byte* data;
  size_t bytes;
  size_t done = 0;
  bool has_started = false, is_finished = false;

  bool is_whole() const { return has_started && done == bytes; }
};

void Comm::exchange_messages(const std::vector<Work>& works) {
  std::vector<Transfer> transfers;
  for (const Work& work : works) {
    const void* buffer = work.call.op == Op::kSend ? work.send : work.recv;
    transfers.push_back({.call = work.call,
                         .data = static_cast<std::byte*>(backing(buffer)),
                         .bytes = work.call.count * type_bytes(work.call.datatype)});
  }
  wait(works[0].call, [&] { return progress(transfers); });
}

/// Moves available data, and returns the ranks that it waits for.
std::vector<int> Comm::progress(std::vector<Transfer>& transfers) {
  std::vector<int> peers;
  for (bool moved = true; moved && !stopped();) {
    moved = false;
    peers.clear();
    bool is_sending[kMaxRanks] = {}, is_receiving[kMaxRanks] = {};  // messages between two ranks keep their order
    for (Transfer& transfer : transfers) {
      if (transfer.is_finished) continue;
      const bool sends = transfer.call.op == Op::kSend;
      bool& is_busy = (sends ? is_sending : is_receiving)[transfer.call.root];
      if (!is_busy) moved |= sends ? send_step(transfer) : receive_step(transfer);
      if (transfer.is_finished) continue;
      is_busy = true;
      peers.push_back(transfer.call.root);
    }
  }
  return peers;
}

bool Comm::send_step(Transfer& transfer) {
  const int peer = transfer.call.root;
  Channel& channel = clique_->segment().channels[rank_][peer];
  if (channel.sent != channel.taken) return false;
  if (transfer.is_whole()) return transfer.is_finished = true;
  const size_t bytes = std::min(kMessageBytes, transfer.bytes - transfer.done);
  if (bytes > 0) std::memcpy(clique_->segment().messages[rank_][peer], transfer.data + transfer.done, bytes);
  if (!transfer.has_started) channel.message = transfer.call;
  transfer.has_started = true;
  transfer.done += bytes;
  ++channel.sent;
  clique_->wake();
  return true;
}

bool Comm::receive_step(Transfer& transfer) {
  const int peer = transfer.call.root;
  Channel& channel = clique_->segment().channels[peer][rank_];
  if (channel.sent == channel.taken) return false;
  const Call& sent = channel.message;
  if (!transfer.has_started && (sent.count != transfer.call.count || sent.datatype != transfer.call.datatype)) {
    break_with("rank " + std::to_string(peer) + " calls " + describe(sent) + ", rank " + std::to_string(rank_) +
               " calls " + describe(transfer.call));
    return false;
  }
  const size_t bytes = std::min(kMessageBytes, transfer.bytes - transfer.done);
  if (bytes > 0) std::memcpy(transfer.data + transfer.done, clique_->segment().messages[peer][rank_], bytes);
  transfer.has_started = true;
  transfer.done += bytes;
  ++channel.taken;
  clique_->wake();
  transfer.is_finished = transfer.is_whole();
  return true;
}

}  // namespace cuda_sim::nccl
