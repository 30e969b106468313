#include "trainkit/data/prefetcher.h"

#include "test_util.h"
#include "trainkit/data/sampler.h"
#include "trainkit/data/tensor_dataset.h"

namespace trainkit {
namespace {

std::shared_ptr<TensorDataset> numbers(int64_t rows) {
  return std::make_shared<TensorDataset>(
      TensorDataset({{"x", torch::arange(rows * 3).reshape({rows, 3})}, {"y", torch::arange(rows)}}));
}

TEST_CASE("Prefetcher delivers the rows of the sampler's order for any number of workers", "[data][prefetcher]") {
  const int workers = GENERATE(0, 1, 2, 7);
  const bool persistent = GENERATE(true, false);
  auto loader = Prefetcher::create(numbers(103), RandomSampler(103, {.seed = 7}),
                                   {.batch_size = 10, .num_workers = workers, .persistent_workers = persistent})
                    .value();
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> order(103);
    RandomSampler(103, {.seed = 7}).fill(epoch, 0, order);
    int64_t at = 0;
    while (auto batch = loader->next().value()) {
      for (int64_t i = 0; i < batch->size(); ++i, ++at) {
        REQUIRE((*batch)["y"][i].item<int64_t>() == order[at]);
        REQUIRE((*batch)["x"][i][2].item<int64_t>() == order[at] * 3 + 2);
        REQUIRE(batch->row_indices()[i] == order[at]);
      }
    }
    CHECK(at == 103);
  }
}

}  // namespace
}  // namespace trainkit
