// Sums of ranks on one machine in shared memory. Tests with killed ranks are in tests/ranks.
#include <sys/stat.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <fstream>
#include <mutex>

#include "distributed/group/process_group_impl.h"
#include "distributed/rank_threads.h"
#include "distributed/replicas/replica_strategy.h"
#include "distributed/shared_memory/rank_memory.h"
#include "test_util.h"
#include "trainkit/distributed/device_replicator.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// The mappings of ranks' memory in this process: begin and end.
std::vector<std::pair<uintptr_t, uintptr_t>> shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::vector<std::pair<uintptr_t, uintptr_t>> found;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (line.find("memfd:trainkit-ranks") == std::string::npos) continue;
    if (sscanf(line.c_str(), "%lx-%lx", &begin, &end) == 2) found.emplace_back(begin, end);
  }
  return found;
}

int64_t mapped_shared() { return static_cast<int64_t>(shared_mappings().size()); }

/// Whether an address is in the memory of a rank.
bool is_shared(const void* address) {
  const auto place = reinterpret_cast<uintptr_t>(address);
  const auto mappings = shared_mappings();
  return std::any_of(mappings.begin(), mappings.end(),
                     [&](const auto& mapping) { return mapping.first <= place && place < mapping.second; });
}

/// The summand of `rank` with `size` numbers; its rounding depends on the order of addition.
at::Tensor numbers(int64_t rank, int64_t size, at::ScalarType type) {
  return (torch::arange(size, at::kDouble) * 0.37 + 1.7 * static_cast<double>(rank)).sin().mul(1 << rank).to(type);
}

at::Tensor sum_in_order(int64_t ranks, int64_t size, at::ScalarType type) {
  at::Tensor sum = numbers(0, size, type);
  for (int64_t rank = 1; rank < ranks; ++rank) sum += numbers(rank, size, type);
  return sum;
}

}  // namespace

TEST_CASE("Sums in shared memory have the bits of an addition in the order of the ranks, at any size",
          "[distributed][shared_memory]") {
  for (const int64_t count : {2, 3, 4}) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      const auto texts = on_ranks(count, [&](ProcessGroup& group) -> absl::Status {
        if (mapped_shared() < count) return absl::InternalError("no memory is shared");
        // At most 4,096 bytes are small; a piece has 4 MiB.
        for (const int64_t size : {0, 1, 3, 512, 1024, 1025, 1 << 20, (1 << 20) + 1, 2'500'000, 7}) {
          const at::Tensor sum = numbers(group.rank(), size, type);
          if (auto status = group.all_reduce(sum); !status.ok()) return status;
          if (!sum.equal(sum_in_order(count, size, type))) return absl::InternalError("wrong: " + std::to_string(size));
        }
        return absl::OkStatus();
      });
      for (const std::string& text : texts) CHECK(text == "ok");
    }
  }
  CHECK(mapped_shared() == 0);
}

TEST_CASE("Twenty ranks of a machine sum in shared memory", "[distributed][shared_memory]") {
  constexpr int64_t kRanks = 20;
  const auto texts = on_ranks(kRanks, [&](ProcessGroup& group) -> absl::Status {
    if (mapped_shared() < kRanks) return absl::InternalError("no memory is shared");
    for (const int64_t size : {1, 1024, 1025, 70'000}) {
      const at::Tensor sum = numbers(group.rank(), size, at::kDouble);
      if (auto status = group.all_reduce(sum); !status.ok()) return status;
      if (!sum.equal(sum_in_order(kRanks, size, at::kDouble))) return absl::InternalError("wrong");
    }
    return absl::OkStatus();
  });
  for (const std::string& text : texts) CHECK(text == "ok");
}

TEST_CASE("A reduce-scatter sums a rank's part, and an all-gather sends it to the others, at any size",
          "[distributed][shared_memory]") {
  for (const bool shared_memory : {true, false}) {
    for (const int64_t count : {2, 3, 4}) {
      const auto exchange = [&](ProcessGroup& group) -> absl::Status {
        for (const int64_t part : {1, 5, 131072, 1 << 19, 700'001, 2}) {
          const int64_t size = part * count, first = part * group.rank();
          const at::Tensor mine = numbers(group.rank(), size, at::kFloat), sum = sum_in_order(count, size, at::kFloat);
          group.impl().reduce_scatter(mine)->wait();
          // Over sockets three and more ranks add in another order.
          const double most = shared_memory || count == 2 ? 0 : 1e-5;
          const at::Tensor wrong = (mine - sum).narrow(0, first, part).abs().max();
          if (wrong.item<double>() > most) return absl::InternalError("wrong sum: " + std::to_string(size));
          const at::Tensor all = torch::full({size}, -1.0), again = torch::full({size}, -1, at::kLong);
          all.narrow(0, first, part).copy_(sum.narrow(0, first, part));
          again.narrow(0, first, part).fill_(group.rank());
          group.impl().all_gather(all)->wait();
          group.impl().all_gather(again)->wait();
          if (!all.equal(sum)) return absl::InternalError("wrong parts: " + std::to_string(size));
          if (!again.equal(torch::arange(count).repeat_interleave(part)))
            return absl::InternalError("wrong int64 parts");
        }
        return absl::OkStatus();
      };
      const auto texts =
          on_ranks(count, exchange, {.timeout = std::chrono::seconds(20), .shared_memory = shared_memory});
      for (const std::string& text : texts) CHECK(text == "ok");
    }
  }
}

TEST_CASE("Tensors in shared memory are summed where they are, and outlive their process group",
          "[distributed][shared_memory]") {
  constexpr int64_t kSize = 1'500'000;
  for (const int64_t sharing : {1, 2, 3}) {  // ranks; the others copy
    std::vector<at::Tensor> kept(3);
    const auto texts = on_ranks(3, [&](ProcessGroup& group) -> absl::Status {
      const auto rank = static_cast<size_t>(group.rank());
      const at::Tensor tensor = numbers(group.rank(), kSize, at::kFloat), view = tensor.narrow(0, 5, 7);
      const void* before = tensor.const_data_ptr();
      if (group.rank() < sharing) group.impl().share(tensor);
      const void* after = tensor.const_data_ptr();
      if ((before == after) == (group.rank() < sharing)) return absl::InternalError("the tensor is in the wrong place");
      group.impl().share(tensor.narrow(0, 0, 1));  // shared already, or now
      if (group.rank() < sharing && tensor.const_data_ptr() != after) return absl::InternalError("moved twice");
      if (!tensor.equal(numbers(group.rank(), kSize, at::kFloat))) return absl::InternalError("lost values");
      for (int round = 0; round < 3; ++round) {
        tensor.copy_(numbers(group.rank(), kSize, at::kFloat));
        if (auto status = group.all_reduce(tensor); !status.ok()) return status;
      }
      if (!view.equal(tensor.narrow(0, 5, 7))) return absl::InternalError("the view is elsewhere");
      const at::Tensor parts = numbers(group.rank(), kSize, at::kDouble);
      group.impl().share(parts);
      group.impl().reduce_scatter(parts)->wait();
      group.impl().all_gather(parts)->wait();
      if (!parts.equal(sum_in_order(3, kSize, at::kDouble))) return absl::InternalError("wrong parts");
      kept[rank] = tensor;
      return absl::OkStatus();
    });
    for (const std::string& text : texts) CHECK(text == "ok");
    for (const at::Tensor& sum : kept) CHECK(sum.equal(sum_in_order(3, kSize, at::kFloat)));
    CHECK(mapped_shared() > 0);
    kept.clear();
    CHECK(mapped_shared() == 0);
  }
}

TEST_CASE("Shared memory is used again, and its pages are given back", "[distributed][shared_memory]") {
  const trainkit::detail::UniqueDescriptor file = trainkit::detail::RankMemory::create();
  const auto memory = trainkit::detail::RankMemory::map(file.get(), getpid());
  REQUIRE(memory);
  const auto pages = [&] {
    struct stat status {};
    REQUIRE(fstat(file.get(), &status) == 0);
    return status.st_blocks / 8;
  };
  const auto allocate = [&](size_t bytes) {
    c10::DataPtr place = memory->allocate(bytes);
    REQUIRE(place);
    memset(place.get(), 1, bytes);
    return place;
  };
  c10::DataPtr first = allocate(10'000), second = allocate(100'000), third = allocate(10);
  const void* const gap = second.get();
  const auto before = pages();
  CHECK(before >= 3 + 25 + 1);
  second.clear();
  CHECK(pages() < before);
  const c10::DataPtr larger = allocate(200'000), again = allocate(90'000);
  CHECK(again.get() == gap);
  CHECK(larger.get() > third.get());
  CHECK_FALSE(memory->allocate(size_t{1} << 40));  // no space: the tensor stays where it is
  CHECK(memory->offset_of(static_cast<const std::byte*>(gap)));
  CHECK_FALSE(memory->offset_of(reinterpret_cast<const std::byte*>(&gap)));
}

TEST_CASE("The gradients of ranks on one machine are in shared memory", "[distributed][shared_memory]") {
  const auto texts = on_ranks(2, [](ProcessGroup& group) -> absl::Status {
    const auto devices = DeviceReplicator::create([] { return torch::nn::Linear(300, 200); },
                                                  {.device = at::kCPU, .process_group = {&group, [](auto*) {}}})
                             .value();
    for (int step = 0; step < 3; ++step) {  // c10d's Reducer arranges its buckets anew after the first one
      devices->module()->zero_grad();
      trainkit::detail::strategy_of(*devices).begin_step();
      devices->run(
          [&](int64_t) {
            return devices->module()->as<torch::nn::Linear>()->forward(torch::ones({4, 300})).sum();
          },
          /*reduce_gradients=*/true);
      for (const at::Tensor& parameter : devices->module()->parameters()) {
        if (!is_shared(parameter.grad().const_data_ptr())) return absl::InternalError("step " + std::to_string(step));
        if (!parameter.grad().eq(8).all().item<bool>()) return absl::InternalError("wrong sum");
      }
    }
    return absl::OkStatus();
  });
  for (const std::string& text : texts) CHECK(text == "ok");
}

TEST_CASE("Unsupported tensors, and ranks with shared memory disabled, use sockets", "[distributed][shared_memory]") {
  for (const bool shared_memory : {true, false}) {
    const auto sum_of = [&](ProcessGroup& group) -> absl::Status {
      if ((mapped_shared() > 0) != shared_memory) return absl::InternalError("memory is shared or not");
      for (const auto type : {at::kFloat, at::kLong, at::kHalf, at::kInt}) {
        const at::Tensor sum = torch::full({1000}, group.rank() + 1, type);
        if (auto status = group.all_reduce(sum); !status.ok()) return status;
        if (!sum.equal(torch::full({1000}, 3, type))) return absl::InternalError("wrong sum");
      }
      return absl::OkStatus();
    };
    for (const std::string& text : on_ranks(2, sum_of, {.shared_memory = shared_memory})) CHECK(text == "ok");
  }
}

TEST_CASE("One rank with shared memory disabled disables it for all", "[distributed][shared_memory]") {
  const int port = free_port();
  std::vector<std::string> texts(3);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto group = ProcessGroup::create(launch_of(rank, 3, port), {.shared_memory = rank != 1});
      const at::Tensor sum = torch::ones({5});
      texts[static_cast<size_t>(rank)] = text_of(group.ok() ? (*group)->all_reduce(sum) : group.status());
      if (!sum.equal(torch::full({5}, 3.0))) texts[static_cast<size_t>(rank)] += " wrong";
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) CHECK(text == "ok");
}

TEST_CASE("Ranks that sum different numbers of bytes get an error", "[distributed][shared_memory]") {
  const auto texts =
      on_ranks(2, [](ProcessGroup& group) { return group.all_reduce(torch::ones({4 + group.rank()}), "test"); });
  CHECK_THAT(texts[0] + texts[1], Catch::Contains("bytes, this rank "));
  for (const std::string& text : texts) CHECK_THAT(text, Catch::StartsWith("error[dist.peer] "));
}

TEST_CASE("A sum that one rank never joins ends at the timeout", "[distributed][shared_memory]") {
  std::mutex late;
  late.lock();
  const auto texts = on_ranks(2,
                              [&](ProcessGroup& group) -> absl::Status {
                                if (group.rank() == 1) {
                                  const std::lock_guard until_the_other_has_given_up(late);
                                  return absl::OkStatus();
                                }
                                const absl::Status status = group.all_reduce(torch::ones({4}), "test");
                                late.unlock();
                                return status;
                              },
                              {.timeout = std::chrono::seconds(1)});
  CHECK_THAT(texts[0], Catch::Contains("rank 1 is at ") && Catch::Contains("in test after 1.") &&
                           Catch::Contains("no answer within the timeout"));
  CHECK(texts[1] == "ok");
}
