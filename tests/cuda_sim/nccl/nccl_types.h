#pragma once
// Describes NCCL calls, and computes their reductions.
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cuda_sim::nccl {

enum class Op : int32_t {
  kNone,
  kInit,
  kSplit,
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAlltoAll,
  kSend,
  kRecv,
};

constexpr int kPreMulSum = ncclNumOps;  // in Call::redop, for every operation of ncclRedOpCreatePreMulSum

/// The arguments that must be equal on all ranks. For Send and Recv, `root` is the other rank.
struct Call {
  Op op = Op::kNone;
  int32_t datatype = -1;
  int32_t redop = -1;
  int32_t root = -1;
  uint64_t count = 0;

  bool operator==(const Call&) const = default;
};

const char* name_of(Op op);
/// For example "AllReduce of 100 float (sum)".
std::string describe(const Call& call);

/// The bytes of an element; 0 for an unknown type.
size_t type_bytes(int datatype);
/// Returns whether reduce() supports the type: all except 8-bit floating point.
bool can_reduce(int datatype);

/// The buffers of a call on one rank.
struct Buffers {
  bool sends, receives;
  size_t send_bytes, recv_bytes;
};
Buffers buffers_of(const Call& call, int rank, int ranks);
/// Returns whether the receive buffer is at the address that NCCL documents for an in-place call.
bool is_in_place(const Call& call, int rank, const void* send, const void* recv);

/// Reduces `sources` element by element in order, so that every rank gets the same bits. half and bfloat16 are
/// accumulated in float, other types in their own type; ncclAvg divides the sum.
void reduce(int datatype, int redop, const std::vector<const std::byte*>& sources, std::byte* result, size_t count);

/// Multiplies `count` elements by a scalar of the same type.
void multiply(int datatype, std::byte* elements, size_t count, const std::byte* scalar);

}  // namespace cuda_sim::nccl
