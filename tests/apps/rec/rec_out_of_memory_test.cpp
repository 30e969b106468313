// trainkit-gpt2rec when memory runs out.
#include <catch2/catch.hpp>

#include "apps/rec/rec_given.h"
#include "test_util.h"
#include "train/budget_allocator.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/data/sampler.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/train_step.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("Out of memory at one row per micro-batch drops the cache, and the loss is that of dynamic mode",
          "[apps][rec][memory]") {
  BudgetAllocator& memory = BudgetAllocator::instance();
  RecGiven settings(planned({"--use_cache", "--max_tokens", "6"}));
  settings.options.sizes.n_embd = 256;  // a cache of 2 MB next to 3 texts in a step
  settings.options.sizes.n_layer = 1;
  const rec::Session session = settings.open();
  const auto triplets = session.triplets(Part::kTrain).value();
  const LossFunction loss = session.loss({.triplets = triplets}, {at::kCPU});
  std::vector<Batch> rows;
  const auto loader = Prefetcher::create(triplets, SequentialSampler(triplets->size()), {.batch_size = 1}).value();
  for (int i = 0; i < 6; ++i) {
    const Batch batch = loader->next().value().value();
    std::vector<at::Tensor> own;
    for (const at::Tensor& tensor : batch.tensors()) own.push_back(tensor.clone());
    rows.push_back(batch.with_tensors(std::move(own)));
  }
  const auto train = [&](bool limited, bool dynamic, int& left, std::vector<double>& losses) {
    torch::manual_seed(3);
    const auto devices = DeviceReplicator::create([&] { return session.create_model(); }).value();
    if (dynamic) leave_cache_mode(*devices);
    SGD optimizer({.lr = 0.1});  // Adam would enlarge the rounding of small gradients
    TrainStep step(*devices, optimizer, {.release_memory = [&] {
      const bool gone = leave_cache_mode(*devices);
      left += gone;
      return gone;
    }});
    step(rows[0], loss);
    const int64_t standing = memory.live();
    // Less than the present cache needs, and more than a step without it.
    if (limited) memory.limit(standing + 500'000);
    for (size_t row = 1; row < rows.size(); ++row) {
      // Another allocation takes the remaining memory.
      const at::Tensor other = limited && row == 2 ? at::empty({499'000}, at::kByte) : at::Tensor();
      losses.push_back(step(rows[row], loss).loss.item<double>());
    }
    memory.limit(0);
    CHECK(step.split() == 1);
    return standing - memory.live();
  };
  int left = 0;
  std::vector<double> expected, got;
  train(false, true, left, expected);
  CHECK(left == 0);
  const int64_t freed = train(true, false, left, got);
  CHECK(left == 1);
  CHECK(freed > 1'500'000);
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).margin(1e-6).epsilon(0));
}
