#include "nccl_test.h"

namespace nccl_test {

// ---- all types and operations

template <typename T>
T from_double(double value) {
  if constexpr (std::is_same_v<T, __half>)
    return __float2half(static_cast<float>(value));
  else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __float2bfloat16(static_cast<float>(value));
  else
    return static_cast<T>(value);
}
template <typename T>
double to_double(T value) {
  if constexpr (std::is_same_v<T, __half>)
    return __half2float(value);
  else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __bfloat162float(value);
  else
    return static_cast<double>(value);
}

template <typename T>
void reduce_type(std::vector<Rank>& ranks, ncclDataType_t type) {
  constexpr size_t kCount = 5;
  const double expected[] = {9, 24, 4, 2, 3, 27};  // of 2, 3, 4; pre-mul-sum with 3
  for (int op = 0; op <= 5; ++op) {
    std::vector<T*> buffers;
    std::vector<ncclRedOp_t> ops;
    for (size_t i = 0; i < ranks.size(); ++i) {
      buffers.push_back(ranks[i].put(std::vector<T>(kCount, from_double<T>(2.0 + static_cast<double>(i)))));
      ops.push_back(static_cast<ncclRedOp_t>(op));
      T three = from_double<T>(3);
      T* on_device = ranks[i].put(std::vector<T>{three});
      const bool from_device = i == 1;
      if (op == 5)
        CHECK_NCCL(ncclRedOpCreatePreMulSum(&ops[i], from_device ? on_device : &three, type,
                                            from_device ? ncclScalarDevice : ncclScalarHostImmediate, ranks[i].comm));
    }
    CHECK_NCCL(ncclGroupStart());
    for (size_t i = 0; i < ranks.size(); ++i) {
      CHECK_NCCL(ncclAllReduce(buffers[i], buffers[i], kCount, type, ops[i], ranks[i].comm, ranks[i].stream));
      if (op == 5) CHECK_NCCL(ncclRedOpDestroy(ops[i], ranks[i].comm));
    }
    CHECK_NCCL(ncclGroupEnd());
    for (size_t i = 0; i < ranks.size(); ++i)
      for (T value : ranks[i].get(buffers[i], kCount)) CHECK(to_double(value) == expected[op]);
  }
}

void types() {
  std::vector<Rank> ranks = replicas(3);
  reduce_type<int8_t>(ranks, ncclInt8);
  reduce_type<uint8_t>(ranks, ncclUint8);
  reduce_type<int32_t>(ranks, ncclInt32);
  reduce_type<uint32_t>(ranks, ncclUint32);
  reduce_type<int64_t>(ranks, ncclInt64);
  reduce_type<uint64_t>(ranks, ncclUint64);
  reduce_type<__half>(ranks, ncclHalf);
  reduce_type<float>(ranks, ncclFloat);
  reduce_type<double>(ranks, ncclDouble);
  reduce_type<__nv_bfloat16>(ranks, ncclBfloat16);
  for (Rank& rank : ranks) CHECK_NCCL(ncclCommDestroy(rank.comm));
  for (Rank& rank : ranks) {
    float* buffer = rank.put(std::vector<float>(1));
    CHECK(ncclAllReduce(buffer, buffer, 1, ncclFloat, ncclSum, rank.comm, rank.stream) == ncclInvalidArgument);
  }
}
// ---- all collectives, in place and not, for ranks of one or several processes

/// Inputs, calls and expected results of a rank. Two functions: all ranks of a process call before one waits.
struct Case {
  float* send;
  float* recv;
  std::vector<float> expected;
};

using Start = std::function<Case(Rank&, int rank, int ranks, size_t count, bool in_place)>;

Case all_reduce(Rank& self, int rank, int ranks, size_t count, bool in_place) {
  Case result{self.put(ramp(count, static_cast<float>(rank))), nullptr, {}};
  result.recv = in_place ? result.send : self.put(std::vector<float>(count));
  CHECK_NCCL(ncclAllReduce(result.send, result.recv, count, ncclFloat, ncclSum, self.comm, self.stream));
  for (float value : ramp(count, 0))
    result.expected.push_back(value * static_cast<float>(ranks) + static_cast<float>(ranks * (ranks - 1) / 2));
  return result;
}

Case reduce(Rank& self, int rank, int ranks, size_t count, bool in_place) {
  Case result{self.put(ramp(count, static_cast<float>(rank))), nullptr, {}};
  const int root = ranks - 1;
  if (rank == root) result.recv = in_place ? result.send : self.put(std::vector<float>(count));
  CHECK_NCCL(ncclReduce(result.send, result.recv, count, ncclFloat, ncclMax, root, self.comm, self.stream));
  if (rank == root) result.expected = ramp(count, static_cast<float>(root));
  return result;
}

Case broadcast(Rank& self, int rank, int, size_t count, bool in_place) {
  const int root = 1;
  Case result{self.put(ramp(count, static_cast<float>(rank * 7))), nullptr, ramp(count, 7)};
  result.recv = in_place ? result.send : self.put(std::vector<float>(count));
  CHECK_NCCL(in_place ? ncclBcast(result.send, count, ncclFloat, root, self.comm, self.stream)
                      : ncclBroadcast(rank == root ? result.send : nullptr, result.recv, count, ncclFloat, root,
                                      self.comm, self.stream));
  return result;
}

Case all_gather(Rank& self, int rank, int ranks, size_t count, bool in_place) {
  const size_t all = count * static_cast<size_t>(ranks);
  const std::vector<float> own = ramp(count, static_cast<float>(rank));
  std::vector<float> recv(all);
  if (in_place) std::copy(own.begin(), own.end(), recv.begin() + static_cast<long>(count) * rank);
  Case result{nullptr, self.put(recv), {}};
  result.send = in_place ? result.recv + count * static_cast<size_t>(rank) : self.put(own);
  CHECK_NCCL(ncclAllGather(result.send, result.recv, count, ncclFloat, self.comm, self.stream));
  for (int other = 0; other < ranks; ++other)
    for (float value : ramp(count, static_cast<float>(other))) result.expected.push_back(value);
  return result;
}

Case reduce_scatter(Rank& self, int rank, int ranks, size_t count, bool in_place) {
  const size_t all = count * static_cast<size_t>(ranks);
  Case result{self.put(ramp(all, static_cast<float>(rank))), nullptr, {}};
  result.recv = in_place ? result.send + count * static_cast<size_t>(rank) : self.put(std::vector<float>(count));
  CHECK_NCCL(ncclReduceScatter(result.send, result.recv, count, ncclFloat, ncclSum, self.comm, self.stream));
  const std::vector<float> base = ramp(all, 0);
  for (size_t i = 0; i < count; ++i)
    result.expected.push_back(base[static_cast<size_t>(rank) * count + i] * static_cast<float>(ranks) +
                              static_cast<float>(ranks * (ranks - 1) / 2));
  return result;
}

std::vector<float> block(size_t count, int from, int to) { return ramp(count, static_cast<float>(100 * from + to)); }

std::vector<float> blocks(int ranks, const std::function<std::vector<float>(int)>& of) {
  std::vector<float> all;
  for (int other = 0; other < ranks; ++other)
    for (float value : of(other)) all.push_back(value);
  return all;
}

Case all_to_all(Rank& self, int rank, int ranks, size_t count, bool by_messages) {
  Case result{self.put(blocks(ranks, [&](int to) { return block(count, rank, to); })),
              self.put(std::vector<float>(count * static_cast<size_t>(ranks))),
              blocks(ranks, [&](int from) { return block(count, from, rank); })};
  if (!by_messages) {
    CHECK_NCCL(ncclAlltoAll(result.send, result.recv, count, ncclFloat, self.comm, self.stream));
    return result;
  }
  CHECK_NCCL(ncclGroupStart());
  for (int other = 0; other < ranks; ++other)
    CHECK_NCCL(
        ncclSend(result.send + count * static_cast<size_t>(other), count, ncclFloat, other, self.comm, self.stream));
  for (int other = 0; other < ranks; ++other)
    CHECK_NCCL(
        ncclRecv(result.recv + count * static_cast<size_t>(other), count, ncclFloat, other, self.comm, self.stream));
  CHECK_NCCL(ncclGroupEnd());
  return result;
}

const std::vector<Start>& collectives() {
  static const auto& all =
      *new std::vector<Start>{all_reduce, reduce, broadcast, all_gather, reduce_scatter, all_to_all};
  return all;
}

void check(Rank& self, const Case& result) {
  CHECK(result.expected.empty() || self.get(result.recv, result.expected.size()) == result.expected);
  CHECK(self.error() == ncclSuccess);
}

void one_process() {
  std::vector<Rank> ranks = replicas(3);
  for (const Start& start : collectives())
    for (size_t count : {size_t{1}, size_t{1000}, size_t{700'001}})
      for (bool in_place : {false, true}) {
        std::vector<Case> results;
        CHECK_NCCL(ncclGroupStart());
        for (int i = 0; i < 3; ++i) results.push_back(start(ranks[static_cast<size_t>(i)], i, 3, count, in_place));
        CHECK_NCCL(ncclGroupEnd());
        for (size_t i = 0; i < 3; ++i) check(ranks[i], results[i]);
      }
}

void several_processes() {
  processes(3, [](Rank& self, int rank) {
    for (const Start& start : collectives())
      for (size_t count : {size_t{1}, size_t{700'001}})
        for (bool in_place : {false, true}) check(self, start(self, rank, 3, count, in_place));
    check(self, all_reduce(self, rank, 3, 5'000'000, true));  // 20 MB
    CHECK_NCCL(ncclCommDestroy(self.comm));
  });
}

void many_calls() {
  const auto start = std::chrono::steady_clock::now();
  processes(2, [](Rank& self, int) {
    float* buffer = self.put(std::vector<float>(10, 1.0F));
    for (int i = 0; i < 1000; ++i)
      CHECK_NCCL(ncclAllReduce(buffer, buffer, 10, ncclFloat, ncclAvg, self.comm, self.stream));
    CHECK(self.get(buffer, 10) == std::vector<float>(10, 1.0F));
  });
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
  std::printf("  %.0f us per small all-reduce of 2 processes\n", time.count() / 1000);
}

}  // namespace nccl_test
