// The batches that a step keeps, and their parts.
#include "train/losses/step_batches.h"

#include <torch/torch.h>

#include "test_util.h"
#include "train/batch_norm_net.h"

using namespace trainkit;
using namespace trainkit::test;
using trainkit::detail::StepBatches;

namespace {

const LossFunction kSumOfRows =
    make_loss_function([](torch::nn::Module&, const Batch& batch) { return batch["x"].sum(); });

void keep(StepBatches& batches, const Batch& batch, size_t place = 0) {
  batches.keep(batch, place);
  batches.add(&kSumOfRows, nullptr);
}

std::vector<int64_t> sizes(const std::vector<StepBatches::Part>& parts) {
  std::vector<int64_t> rows;
  for (const auto& part : parts) rows.push_back(part.batch.size());
  return rows;
}

}  // namespace

TEST_CASE("The last batch of a step is kept by reference, earlier ones as copies", "[train][step_batches]") {
  StepBatches batches(2);
  CHECK(batches.is_new());
  const Batch first = random_batch(4, 1), second = random_batch(4, 2);
  const at::Tensor before = first["x"].clone();
  keep(batches, first);
  keep(batches, second);
  first["x"].zero_();
  CHECK(torch::equal(batches.at(0).batch["x"], before));
  CHECK(batches.at(1).batch["x"].is_same(second["x"]));
  CHECK(&batches.at(0).loss() == &kSumOfRows);
  CHECK(batches.count() == 2);
  batches.clear();
  CHECK(batches.count() == 0);
  CHECK_FALSE(batches.is_new());
}

TEST_CASE("Copies alternate between two places and reuse their memory unless a loss function holds it",
          "[train][step_batches]") {
  StepBatches batches(2);
  std::vector<const void*> places;
  at::Tensor held;
  for (size_t step = 0; step < 6; ++step) {
    keep(batches, random_batch(step == 2 ? 3 : 4, step), step % 2);
    if (step == 5) held = batches.at(0).batch["x"];
    places.push_back(batches.at(0).batch["x"].const_data_ptr());
    batches.clear();
  }
  CHECK(places[0] != places[1]);
  CHECK(places[2] == places[0]);  // fewer rows
  CHECK(places[4] == places[0]);
  CHECK(places[5] == places[1]);
  keep(batches, random_batch(4, 9), 1);
  CHECK(batches.at(0).batch["x"].const_data_ptr() != held.const_data_ptr());
}

TEST_CASE("Each batch begins once, and again after restart()", "[train][step_batches]") {
  StepBatches batches(3);
  for (uint64_t i = 0; i < 3; ++i) keep(batches, random_batch(2, i));
  for (int round = 0; round < 2; ++round) {
    for (int64_t i = 0; i < 3; ++i) CHECK(batches.begin_next() == i);
    CHECK(batches.begun() == 3);
    batches.restart();
  }
  CHECK(batches.is_last(2));
  CHECK_FALSE(batches.is_last(1));
}

TEST_CASE("The parts of a batch have all its rows, in order", "[train][step_batches]") {
  StepBatches batches(1);
  const Batch batch = random_batch(5, 1);
  keep(batches, batch);
  CHECK(sizes(batches.parts(0, false)) == std::vector<int64_t>{5});
  batches.split_more();
  batches.split_more();
  const auto parts = batches.parts(0, false);
  CHECK(sizes(parts) == std::vector<int64_t>{1, 1, 1, 2});
  std::vector<at::Tensor> rows;
  for (const auto& part : parts) rows.push_back(part.batch["x"]);
  CHECK(torch::equal(torch::cat(rows), batch["x"]));
  CHECK(parts.back().is_last);
  CHECK_FALSE(parts.front().is_last);
}

TEST_CASE("Empty parts are left out, except the last one of a step and those that others wait for",
          "[train][step_batches]") {
  StepBatches batches(2);
  keep(batches, random_batch(1, 1));
  keep(batches, random_batch(1, 2));
  batches.set_split(4);
  CHECK(sizes(batches.parts(0, false)) == std::vector<int64_t>{1});
  CHECK(sizes(batches.parts(0, true)) == std::vector<int64_t>{0, 0, 0, 1});
  batches.clear();
  keep(batches, random_batch(2, 1).slice(0, 0));
  keep(batches, random_batch(2, 1).slice(0, 0));
  CHECK(batches.parts(0, false).empty());
  CHECK(sizes(batches.parts(1, false)) == std::vector<int64_t>{0});
  CHECK_THROWS_AS(batches.set_split(0), c10::ValueError);
  batches.note_split();
  batches.split_more();
  batches.restore_split();
  CHECK(batches.split() == 4);
}

TEST_CASE("A step notes the number of its rows and the first eight of them", "[train][step_batches]") {
  StepBatches batches(2);
  const std::vector<int64_t> indices = {7, 3, 9, 1, 5};
  const Batch rows = random_batch(5, 1);
  const Batch batch(rows.content()->fields, {rows["x"], rows["y"]}, indices, /*padding_rows=*/0);
  keep(batches, batch);
  keep(batches, batch);
  StepMetrics metrics;
  batches.note_rows(metrics);
  CHECK(metrics.rows == 10);
  CHECK(metrics.row_indices == std::vector<int64_t>{7, 3, 9, 1, 5, 7, 3, 9});
}
