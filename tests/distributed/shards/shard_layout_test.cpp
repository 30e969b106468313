// Which numbers of divided parameters are each rank's.
#include "distributed/shards/shard_layout.h"

#include <torch/torch.h>

#include "test_util.h"

using namespace trainkit;
using trainkit::detail::ShardLayout;

namespace {

at::Tensor shape(at::IntArrayRef sizes) { return at::empty(sizes, at::kMeta); }

ShardLayout layout_of(int64_t rank, int64_t ranks, std::vector<char> is_whole = {0, 0, 0}) {
  return {{shape({5, 7}), shape({3}), shape({40})},
          std::move(is_whole),
          {.rank = rank, .ranks = ranks, .first_bytes = 64, .bucket_bytes = 256}};
}

}  // namespace

TEST_CASE("The parts of all ranks are the whole parameter", "[distributed][shard_layout]") {
  const int64_t ranks = GENERATE(1, 2, 3, 7);
  const auto is_whole = GENERATE(std::vector<char>{0, 0, 0}, std::vector<char>{1, 0, 0});
  for (size_t p = 0; p < 3; ++p) {
    const ShardLayout first = layout_of(0, ranks, is_whole);
    const at::Tensor numbers = at::arange(first.shape(p).numel(), at::kFloat).view(first.shape(p).sizes());
    const at::Tensor whole = first.make_whole(p, at::kFloat).zero_();
    std::vector<int64_t> elements;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const ShardLayout layout = layout_of(rank, ranks, is_whole);
      const at::Tensor part = layout.part_of(p, numbers);
      layout.put(p, part, whole);
      elements.push_back(part.numel());
      const auto cuts = layout.cuts(p);
      CHECK(cuts[static_cast<size_t>(rank) + 1] - cuts[static_cast<size_t>(rank)] == part.numel());
    }
    CHECK(torch::equal(whole, numbers));
    if (is_whole[p]) CHECK(std::count(elements.begin(), elements.end(), 0) == ranks - 1);
  }
}

TEST_CASE("A cut of a buffer has the numbers of the part", "[distributed][shard_layout]") {
  constexpr int64_t kRanks = 3;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    const ShardLayout layout = layout_of(rank, kRanks);
    for (size_t p = 0; p < layout.parameters(); ++p) {
      const size_t bucket = layout.bucket_of(p);
      const at::Tensor buffer = at::zeros({layout.elements(bucket)});
      const at::Tensor numbers = at::randn(layout.shape(p).sizes());
      layout.view(p, buffer).copy_(numbers);
      const at::Tensor cut = layout.cut(p, layout.own_part(bucket, buffer));
      CHECK(torch::equal(cut, layout.part_of(p, numbers)));
      CHECK(cut.is_alias_of(buffer));
    }
  }
}

TEST_CASE("A tensor of another shape does not fit", "[distributed][shard_layout]") {
  const ShardLayout layout = layout_of(0, 2);
  CHECK(layout.fits(0, at::zeros({5, 7})));
  CHECK_FALSE(layout.fits(0, at::zeros({7, 5})));
  CHECK_THROWS_AS(layout.part_of(0, at::zeros({35})), c10::ValueError);
  CHECK_THROWS(layout.shape(3));
}
