#pragma once
/// The contract of every Sampler in one call: check_sampler_contract(sampler, rows).

#include <algorithm>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "test_util.h"
#include "trainkit/data/sampler.h"

namespace trainkit::test {

inline std::vector<int64_t> order_of(const Sampler& sampler, int64_t epoch) {
  std::vector<int64_t> order(sampler.size());
  sampler.fill(epoch, 0, order);
  return order;
}

struct SamplerContract {
  bool each_row_once = true;  ///< false: rows may be omitted and repeated (weighted, sharded).
  bool shuffles = true;       ///< A different order in every epoch.
};

/// Fails the test case if `sampler`, which draws from `num_rows` rows, breaks the contract in data/sampler.h: the order
/// depends only on (seed, epoch, position), not on the sizes, strides and threads of the calls; the shares of any world
/// size together give the same order.
inline void check_sampler_contract(std::shared_ptr<const Sampler> sampler, int64_t num_rows,
                                   SamplerContract expected = {}) {
  const int64_t size = sampler->size();
  REQUIRE(size >= 0);
  sampler->fill(0, 0, {});
  sampler->fill(0, size, {});
  for (const int64_t epoch : {0, 1, 1000000}) {
    INFO("epoch " << epoch);
    const auto order = order_of(*sampler, epoch);
    CHECK(std::all_of(order.begin(), order.end(), [&](int64_t row) { return 0 <= row && row < num_rows; }));
    CHECK(order_of(*sampler, epoch) == order);
    if (expected.each_row_once) {
      auto sorted = order;
      std::sort(sorted.begin(), sorted.end());
      std::vector<int64_t> all(num_rows);
      std::iota(all.begin(), all.end(), 0);
      CHECK(sorted == all);
    }
    if (expected.shuffles && size > 20) CHECK(order_of(*sampler, epoch + 1) != order);
    for (const int64_t piece : {1, 3, 257}) {
      std::vector<int64_t> pieces(size);
      for (int64_t at = 0; at < size; at += piece) {
        sampler->fill(epoch, at, std::span(pieces).subspan(at, std::min(piece, size - at)));
      }
      CHECK(pieces == order);
    }
    for (const int64_t stride : {1, 2, 7, 300}) {
      for (const int64_t begin : {int64_t{0}, size / 3}) {
        std::vector<int64_t> every;
        for (int64_t at = begin; at < size; at += stride) every.push_back(order[at]);
        std::vector<int64_t> strided(every.size());
        sampler->fill_strided(epoch, begin, stride, strided);
        CHECK(strided == every);
      }
    }
    std::vector<std::vector<int64_t>> seen(4);
    std::vector<std::thread> threads;
    for (auto& mine : seen) threads.emplace_back([&] { mine = order_of(*sampler, epoch); });
    for (auto& thread : threads) thread.join();
    for (const auto& each : seen) CHECK(each == order);

    if (sampler->world_size() > 1) continue;
    for (const int64_t world : {1, 2, 3, 8}) {
      INFO("world size " << world);
      std::vector<int64_t> together(size / world * world);
      for (int64_t rank = 0; rank < world; ++rank) {
        const auto share = order_of(DistributedSampler(sampler, {.rank = rank, .world_size = world}), epoch);
        REQUIRE(static_cast<int64_t>(share.size()) == size / world);
        for (size_t i = 0; i < share.size(); ++i) together[i * world + rank] = share[i];
      }
      CHECK(std::equal(together.begin(), together.end(), order.begin()));
    }
  }
  CHECK(sampler->size() == size);
}

}  // namespace trainkit::test
