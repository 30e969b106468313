// RunningNormalizer: statistics of all rows, merged over batches and ranks.
#include "trainkit/rl/running_normalizer.h"

#include <torch/torch.h>

#include "distributed/rank_threads.h"
#include "test_util.h"
#include "trainkit/core/status.h"

using namespace trainkit;

namespace {

/// Rows of different means, far from 0 compared with their spread.
at::Tensor rows_of(int64_t batch, int64_t count) {
  torch::manual_seed(batch);
  return torch::randn({count, 2, 3}) * (1 + 0.2 * static_cast<double>(batch)) + 1000 + 3 * static_cast<double>(batch);
}

}  // namespace

TEST_CASE("Running statistics are those of all rows at once", "[rl][normalizer]") {
  RunningNormalizer normalizer(RunningNormalizerOptions{.shape = {2, 3}});
  const at::Tensor raw = torch::randn({4, 2, 3}) * 3;
  CHECK(torch::allclose(normalizer(raw), raw.clamp(-10, 10)));  // before the first rows
  std::vector<at::Tensor> all;
  for (int64_t batch = 0; batch < 5; ++batch) {
    all.push_back(rows_of(batch, 3 + 10 * batch));
    REQUIRE(normalizer->update(batch == 2 ? all.back().view({-1, 1, 2, 3}) : all.back()).ok());
    REQUIRE(normalizer->update(torch::zeros({0, 2, 3})).ok());
    const at::Tensor whole = torch::cat(all).to(at::kDouble);
    CHECK(torch::allclose(normalizer->mean, whole.mean(0), 1e-12, 0));
    CHECK(torch::allclose(normalizer->variance, whole.var(0, /*unbiased=*/false), 1e-9, 0));
    CHECK(normalizer->count.item<double>() == static_cast<double>(whole.size(0)));
  }
  const at::Tensor whole = torch::cat(all);
  const at::Tensor normal = normalizer(whole);
  CHECK(normal.scalar_type() == at::kFloat);
  CHECK(torch::allclose(normal.mean(0), torch::zeros({2, 3}), 0, 1e-3));
  CHECK(torch::allclose(normal.std(0, /*unbiased=*/false), torch::ones({2, 3}), 1e-3));
  CHECK(normalizer(torch::full({1, 2, 3}, 1e6)).eq(10).all().item<bool>());
  CHECK(RunningNormalizer(RunningNormalizerOptions{.shape = {1}, .clip = 0})(torch::full({1, 1}, 50.0)).item<float>() ==
        50);
  CHECK(normalizer->named_parameters().is_empty());
  CHECK(normalizer->named_buffers().keys() == std::vector<std::string>{"mean", "variance", "count"});
  const auto copy = std::dynamic_pointer_cast<RunningNormalizerImpl>(normalizer->clone());
  CHECK(copy->forward(whole).equal(normal));
  CHECK_THROWS_WITH(normalizer->update(torch::zeros({4, 3, 2})), Catch::Contains("(..., [2, 3])"));
}

TEST_CASE("Ranks get the same statistics, those of the rows of all of them", "[rl][normalizer]") {
  std::vector<RunningNormalizer> normalizers;
  for (int rank = 0; rank < 3; ++rank) normalizers.emplace_back(RunningNormalizerOptions{.shape = {2, 3}});
  RunningNormalizer alone(RunningNormalizerOptions{.shape = {2, 3}});
  // Rows are made here: LibTorch's default generator belongs to this thread.
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i < 9; ++i) rows.push_back(rows_of(i, i % 3 == 1 ? 0 : 4 + i));
  const auto texts = test::on_ranks(3, [&](ProcessGroup& group) -> absl::Status {
    for (int64_t batch = 0; batch < 3; ++batch) {
      TRAINKIT_RETURN_IF_ERROR(normalizers[group.rank()]->update(rows[3 * batch + group.rank()], &group));
    }
    return absl::OkStatus();
  });
  for (const std::string& text : texts) CHECK(text == "ok");
  for (const at::Tensor& part : rows) REQUIRE(alone->update(part).ok());
  for (const RunningNormalizer& normalizer : normalizers) {
    CHECK(normalizer->mean.equal(normalizers[0]->mean));
    CHECK(normalizer->variance.equal(normalizers[0]->variance));
    CHECK(torch::allclose(normalizer->mean, alone->mean, 1e-12, 0));
    CHECK(torch::allclose(normalizer->variance, alone->variance, 1e-9, 0));
    CHECK(normalizer->count.item<double>() == alone->count.item<double>());
  }
}
