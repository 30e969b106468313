#include "contract/sampler_contract.h"

namespace trainkit {
namespace {

using test::check_sampler_contract;

// Implements only the required functions of a sampler.
class Backwards final : public Sampler {
 public:
  int64_t size() const override { return 101; }
  void fill(int64_t, int64_t begin, std::span<int64_t> out) const override {
    for (size_t i = 0; i < out.size(); ++i) out[i] = 100 - begin - static_cast<int64_t>(i);
  }
};

TEST_CASE("A sampler that only implements fill satisfies the contract", "[contract][sampler]") {
  check_sampler_contract(std::make_shared<Backwards>(), 101, {.shuffles = false});
}

TEST_CASE("SequentialSampler satisfies the contract", "[contract][sampler]") {
  for (const int64_t size : {0, 1, 1000}) {
    check_sampler_contract(std::make_shared<SequentialSampler>(size), size, {.shuffles = false});
  }
}

TEST_CASE("RandomSampler satisfies the contract at every size around its thresholds", "[contract][sampler]") {
  for (const int64_t size : {0, 1, 2, 3, 5, 64, 255, 256, 257, 258, 511, 512, 513, 1000, 1024, 4097}) {
    INFO("size " << size);
    check_sampler_contract(std::make_shared<RandomSampler>(size, RandomSamplerOptions{.seed = 9}), size);
  }
}

TEST_CASE("WeightedRandomSampler satisfies the contract", "[contract][sampler]") {
  const std::vector<double> weights = {0, 1, 2.5, 1e-9, 7, 0, 3};
  check_sampler_contract(
      std::make_shared<WeightedRandomSampler>(weights, WeightedRandomSamplerOptions{.num_samples = 1000, .seed = 2}), 7,
      {.each_row_once = false});
}

TEST_CASE("DistributedSampler satisfies the contract for every way to handle the remainder", "[contract][sampler]") {
  for (const UnevenTail tail : {UnevenTail::kDrop, UnevenTail::kPad, UnevenTail::kUneven}) {
    for (const int64_t rank : {0, 2, 3}) {
      const auto sampler = std::make_shared<DistributedSampler>(
          RandomSampler(1002, {.seed = 4}), DistributedSamplerOptions{.rank = rank, .world_size = 4, .tail = tail});
      check_sampler_contract(sampler, 1002, {.each_row_once = false});
    }
  }
}

}  // namespace
}  // namespace trainkit
