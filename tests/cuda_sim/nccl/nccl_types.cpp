#include "nccl_types.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace cuda_sim::nccl {

namespace {

constexpr const char* kTypeNames[] = {"int8", "uint8", "int32",  "uint32",   "int64",      "uint64",
                                      "half", "float", "double", "bfloat16", "float8e4m3", "float8e5m2"};
constexpr size_t kTypeBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
constexpr const char* kRedopNames[] = {"sum", "prod", "max", "min", "avg", "pre-mul-sum"};

template <typename T>
auto widen(T value) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half2float(value);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __bfloat162float(value);
  } else {
    return value;
  }
}

template <typename T, typename A>
T narrow(A value) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half(value);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16(value);
  } else {
    return static_cast<T>(value);
  }
}

// Integers wrap around as on the device.
template <typename A>
A add(A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    using U = std::make_unsigned_t<A>;
    return static_cast<A>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

template <typename A>
A product(A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    using U = std::make_unsigned_t<A>;
    return static_cast<A>(static_cast<U>(a) * static_cast<U>(b));
  } else {
    return a * b;
  }
}

template <typename A>
A larger(A a, A b) {
  if constexpr (std::is_integral_v<A>) return std::max(a, b);
  if constexpr (!std::is_integral_v<A>) return std::fmax(a, b);
}

template <typename A>
A smaller(A a, A b) {
  if constexpr (std::is_integral_v<A>) return std::min(a, b);
  if constexpr (!std::is_integral_v<A>) return std::fmin(a, b);
}

template <typename T, typename Combine, typename Finish>
void fold(const std::vector<const std::byte*>& sources, std::byte* result, size_t count, Combine combine,
          Finish finish) {
  T* out = reinterpret_cast<T*>(result);
  for (size_t i = 0; i < count; ++i) {
    auto value = widen(reinterpret_cast<const T*>(sources[0])[i]);
    for (size_t rank = 1; rank < sources.size(); ++rank)
      value = combine(value, widen(reinterpret_cast<const T*>(sources[rank])[i]));
    out[i] = narrow<T>(finish(value));
  }
}

template <typename T>
void reduce_as(int redop, const std::vector<const std::byte*>& sources, std::byte* result, size_t count) {
  using A = decltype(widen(T{}));
  const auto same = [](A value) { return value; };
  const auto mean = [ranks = static_cast<A>(sources.size())](A value) { return static_cast<A>(value / ranks); };
  switch (redop) {
    case ncclProd:
      return fold<T>(
          sources, result, count, [](A a, A b) { return product(a, b); }, same);
    case ncclMax:
      return fold<T>(
          sources, result, count, [](A a, A b) { return larger(a, b); }, same);
    case ncclMin:
      return fold<T>(
          sources, result, count, [](A a, A b) { return smaller(a, b); }, same);
    case ncclAvg:
      return fold<T>(
          sources, result, count, [](A a, A b) { return add(a, b); }, mean);
    default:
      return fold<T>(
          sources, result, count, [](A a, A b) { return add(a, b); }, same);
  }
}

template <typename F>
void with_type(int datatype, F&& f) {
  switch (datatype) {
    case ncclInt8:
      return f(int8_t{});
    case ncclUint8:
      return f(uint8_t{});
    case ncclInt32:
      return f(int32_t{});
    case ncclUint32:
      return f(uint32_t{});
    case ncclInt64:
      return f(int64_t{});
    case ncclUint64:
      return f(uint64_t{});
    case ncclFloat16:
      return f(__half{});
    case ncclFloat32:
      return f(float{});
    case ncclFloat64:
      return f(double{});
    case ncclBfloat16:
      return f(__nv_bfloat16{});
    default:
      return;
  }
}

}  // namespace

const char* name_of(Op op) {
  constexpr const char* kNames[] = {"nothing",   "CommInitRank",  "CommSplit", "AllReduce", "Reduce", "Broadcast",
                                    "AllGather", "ReduceScatter", "AlltoAll",  "Send",      "Recv"};
  return kNames[static_cast<int>(op)];
}

std::string describe(const Call& call) {
  std::string text = name_of(call.op);
  if (call.datatype >= 0) text += " of " + std::to_string(call.count) + " " + kTypeNames[call.datatype];
  if (call.redop >= 0) text += std::string(" (") + kRedopNames[call.redop] + ")";
  const std::string root = std::to_string(call.root);
  if (call.op == Op::kSend) text += " to rank " + root;
  if (call.op == Op::kRecv) text += " from rank " + root;
  if (call.op == Op::kReduce) text += " to root " + root;
  if (call.op == Op::kBroadcast) text += " from root " + root;
  return text;
}

size_t type_bytes(int datatype) { return datatype < 0 || datatype >= ncclNumTypes ? 0 : kTypeBytes[datatype]; }

bool can_reduce(int datatype) { return datatype >= 0 && datatype <= ncclBfloat16; }

Buffers buffers_of(const Call& call, int rank, int ranks) {
  const size_t bytes = call.count * type_bytes(call.datatype);
  const bool is_root = rank == call.root;
  const size_t all = bytes * static_cast<size_t>(ranks);
  switch (call.op) {
    case Op::kReduce:
      return {true, is_root, bytes, bytes};
    case Op::kBroadcast:
      return {is_root, true, bytes, bytes};
    case Op::kAllGather:
      return {true, true, bytes, all};
    case Op::kReduceScatter:
      return {true, true, all, bytes};
    case Op::kAlltoAll:
      return {true, true, all, all};
    case Op::kSend:
      return {true, false, bytes, 0};
    case Op::kRecv:
      return {false, true, 0, bytes};
    default:
      return {true, true, bytes, bytes};
  }
}

bool is_in_place(const Call& call, int rank, const void* send, const void* recv) {
  const size_t own = static_cast<size_t>(rank) * call.count * type_bytes(call.datatype);
  const char* from = static_cast<const char*>(send);
  const char* to = static_cast<const char*>(recv);
  if (call.op == Op::kAlltoAll) return false;
  if (call.op == Op::kAllGather) return from == to + own;
  if (call.op == Op::kReduceScatter) return to == from + own;
  return from == to;
}

void reduce(int datatype, int redop, const std::vector<const std::byte*>& sources, std::byte* result, size_t count) {
  with_type(datatype, [&](auto type) { reduce_as<decltype(type)>(redop, sources, result, count); });
}

void multiply(int datatype, std::byte* elements, size_t count, const std::byte* scalar) {
  with_type(datatype, [&](auto type) {
    using T = decltype(type);
    T* out = reinterpret_cast<T*>(elements);
    const auto factor = widen(*reinterpret_cast<const T*>(scalar));
    for (size_t i = 0; i < count; ++i) out[i] = narrow<T>(product(widen(out[i]), factor));
  });
}

}  // namespace cuda_sim::nccl
