// Snapshots of the training state, which another thread may save.
#include <atomic>
#include <thread>

#include "test_util.h"
#include "train/checkpoint/checkpoint_run.h"
#include "trainkit/train/checkpoint.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("A snapshot has the values and strides of all kinds of tensors and shares no memory with them",
          "[train][checkpoint]") {
  const at::Tensor big = at::arange(3 << 20, at::kFloat);  // 12 MiB
  const NamedTensors live = {{"big", big.clone()},
                             {"odd start", big.clone().narrow(0, 3, 1000)},
                             {"odd bytes", at::arange(13, at::kByte)},
                             {"scalar", at::tensor(2.5)},
                             {"empty", at::empty({0, 4})},
                             {"transposed", at::arange(12, at::kDouble).view({3, 4}).t()},
                             {"channels_last", at::rand({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)},
                             {"every second", at::arange(20, at::kLong).slice(0, 0, 20, 2)},
                             {"expanded", at::arange(3, at::kInt).view({3, 1}).expand({3, 4})},
                             {"half", at::rand({7}).to(at::kHalf)},
                             {"flags", at::rand({9}).gt(0.5)}};
  std::vector<at::Tensor> expected;
  for (const auto& [name, tensor] : live) expected.push_back(tensor.clone());
  const CheckpointContents copy = snapshot({.model = live, .optimizer = live, .state = {{"t", big.narrow(0, 0, 5)}}});
  for (const auto& [name, tensor] : live) at::Tensor(tensor.dim() == 2 ? tensor.select(1, 0) : tensor).zero_();
  for (const NamedTensors* tensors : {&copy.model, &copy.optimizer}) {
    for (size_t i = 0; i < live.size(); ++i) {
      INFO(live[i].first);
      CHECK((*tensors)[i].first == live[i].first);
      CHECK((*tensors)[i].second.scalar_type() == expected[i].scalar_type());
      CHECK(at::equal((*tensors)[i].second, expected[i]));
      if (live[i].second.is_non_overlapping_and_dense()) {
        CHECK((*tensors)[i].second.strides() == live[i].second.strides());
      }
    }
  }
  CHECK(at::equal(std::get<at::Tensor>(copy.state.at("t")), at::arange(5, at::kFloat)));
}

TEST_CASE("A snapshot shares nothing with the live tensors", "[train][checkpoint]") {
  const CheckpointContents live = contents_of(1);
  const CheckpointContents copy = snapshot(live);
  live.model[0].second.fill_(9);
  live.optimizer[0].second.fill_(9);
  std::get<at::Tensor>(live.state.at("generator")).fill_(9);
  CHECK(torch::equal(copy.model[0].second, contents_of(1).model[0].second));
  CHECK(torch::equal(copy.optimizer[0].second, contents_of(1).optimizer[0].second));
  CHECK(torch::equal(std::get<at::Tensor>(copy.state.at("generator")), torch::arange(16, torch::kByte)));
}

TEST_CASE("Another thread may save a snapshot while readers load checkpoints", "[train][checkpoint]") {
  const Run run;
  auto store = run.open(2);
  std::atomic<int> failed{0};
  std::thread writer([&, copy = snapshot(contents_of(31))] {
    for (int64_t step = 31; step < 60; ++step) failed += !store.save(step, copy).ok();
  });
  int loads = 0;
  while (loads < 30) {
    const auto latest = store.latest();
    REQUIRE(latest.status() == absl::OkStatus());
    (void)store.load(*latest);  // may have been dropped meanwhile
    (void)store.steps();
    ++loads;
  }
  writer.join();
  CHECK(failed == 0);
  CHECK(store.load(59).status() == absl::OkStatus());
}
