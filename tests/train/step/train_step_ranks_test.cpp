#include <fstream>

#include "ranks.h"
#include "test_util.h"
#include "train/train_rank.h"
#include "trainkit/io/safetensors.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// Weights after one process has trained on all rows of each step. Adds the losses of the steps to `losses`.
std::vector<at::Tensor> weights_of_one_process(const DeviceReplicatorOptions& options = {},
                                               std::vector<double>* losses = nullptr) {
  const auto devices = DeviceReplicator::create(
                           [] {
                             torch::manual_seed(1);
                             return RankNet();
                           },
                           options)
                           .value();
  SGD optimizer({.lr = 0.1});
  TrainStep train(*devices, optimizer, {.grad_clip = 1.0});
  for (int64_t step = 1; step <= kRankSteps; ++step) {
    const StepMetrics metrics = train(rank_batch(step, 0, 1), rank_loss);
    if (losses) losses->push_back(metrics.loss.item<double>());
  }
  for (int64_t copy = 1; copy < devices->weight_copies(); ++copy) {
    for (size_t i = 0; i < devices->module()->parameters().size(); ++i) {
      CHECK(devices->module(copy)->parameters()[i].equal(devices->module()->parameters()[i]));
    }
  }
  return devices->module()->parameters();
}

void check_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK((a[i] - b[i]).abs().max().item<double>() < 1e-5);
}

std::vector<at::Tensor> weights_of(const TempDir& folder, int rank) {
  const auto file = SafetensorsFile::open(folder / ("rank" + std::to_string(rank) + ".safetensors")).value();
  std::vector<at::Tensor> weights;
  for (const auto& item : RankNet()->named_parameters()) weights.push_back(file.tensor(item.key()).value());
  return weights;
}

}  // namespace

TEST_CASE("Losses of unequal weight on several replicas give the step of one process with all rows",
          "[train][train_step][ranks]") {
  const auto one = weights_of_one_process();
  check_close(weights_of_one_process({.cpu_replicas = 2}), one);
  check_close(weights_of_one_process({.cpu_replicas = 3, .share_weights = false}), one);
}

TEST_CASE("Losses of unequal weight on several ranks give the step of one process with all rows",
          "[train][train_step][ranks]") {
  std::vector<double> losses;
  const auto one = weights_of_one_process({}, &losses);
  for (const std::string& scenario : std::vector<std::string>{"plain", "accumulate"}) {
    for (const int count : {2, 4}) {
      INFO(scenario << " on " << count << " ranks");
      const TempDir folder;
      Ranks job("train_rank", count, {scenario, folder.path().string()}, folder.path().string());
      for (int rank = 0; rank < count; ++rank) {
        INFO(job.err(rank));
        REQUIRE(job.wait(rank) == 0);
        CHECK(job.out(rank) == job.out(0));  // the loss is averaged over all ranks
        check_close(weights_of(folder, rank), one);
      }
      std::istringstream lines(job.out(0));
      for (const double expected : losses) {
        std::string word;
        double step = 0, loss = 0;
        lines >> word >> step >> word >> loss;
        CHECK(loss == Approx(expected).epsilon(1e-4));
      }
    }
  }
}

TEST_CASE("A step with fewer micro-batches than planned is still reduced", "[train][train_step][ranks]") {
  const TempDir folder;
  Ranks job("train_rank", 2, {"accumulate_short", folder.path().string()}, folder.path().string());
  REQUIRE(job.wait_all() == std::vector<int>{0, 0});
  check_close(weights_of(folder, 0), weights_of_one_process());
  for (size_t i = 0; i < 4; ++i) CHECK(weights_of(folder, 0)[i].equal(weights_of(folder, 1)[i]));
}

TEST_CASE("A rank without a readable row in the first steps trains with the others, and reports their metrics",
          "[train][train_step][ranks]") {
  const TempDir folder;
  Ranks job("train_rank", 2, {"unreadable", folder.path().string()}, folder.path().string());
  for (int rank = 0; rank < 2; ++rank) {
    INFO(job.err(rank));
    REQUIRE(job.wait(rank) == 0);
  }
  CHECK(job.out(0) == job.out(1));
  CHECK_THAT(job.out(1), Catch::Contains("step 1 loss ") && Catch::Contains(" twice "));
  for (size_t i = 0; i < 4; ++i) CHECK(weights_of(folder, 0)[i].equal(weights_of(folder, 1)[i]));
}

TEST_CASE("A metric is averaged over the ranks that returned it", "[train][train_step][ranks]") {
  const TempDir folder;
  Ranks job("train_rank", 2, {"own_metrics", folder.path().string()}, folder.path().string());
  for (int rank = 0; rank < 2; ++rank) {
    INFO(job.err(rank));
    REQUIRE(job.wait(rank) == 0);
  }
  CHECK(job.out(0) == job.out(1));
  const std::string out = job.out(0), second = out.substr(out.find("step 2"), out.find("step 3") - out.find("step 2"));
  CHECK_THAT(second, Catch::Contains(" of_rank_0 1 common 1\n"));
  // Rank 0 has 6 rows that count and rank 1 has 8: (6 * 1 + 8 * 2) / 14.
  CHECK_THAT(out, Catch::Contains(" of_rank_0 1 common 1.57143 of_rank_1 2\nstep 4"));
}

TEST_CASE("A rank that is killed ends the others with an error that names it", "[train][train_step][ranks]") {
  for (const int count : {2, 4}) {
    const TempDir folder;
    Ranks job("train_rank", count, {"killed", folder.path().string()}, folder.path().string());
    for (int rank = 0; rank < count; ++rank) {
      INFO(job.err(rank));
      if (rank == 1) {
        CHECK(job.wait(rank) == 256 + SIGKILL);
        continue;
      }
      CHECK(job.wait(rank) == 8);
      CHECK_THAT(job.err(rank), Catch::StartsWith("trainkit: error[dist.peer] rank 1 lost at step 3 in allreduce("));
      CHECK_THAT(job.err(rank), Catch::Contains(": connection "));
    }
  }
}

TEST_CASE("A rank that hangs ends the others at the timeout with an error that names it",
          "[train][train_step][ranks]") {
  const TempDir folder;
  Ranks job("train_rank", 2, {"stopped", folder.path().string()}, folder.path().string());
  CHECK(job.wait(0) == 8);
  INFO(job.err(0));
  CHECK_THAT(job.err(0), Catch::Contains("rank 1 lost at step 3 in allreduce("));
  CHECK_THAT(job.err(0), Catch::Contains("no answer within the timeout"));
}

TEST_CASE("A rank that exits early is reported as lost", "[train][train_step][ranks]") {
  const TempDir folder;
  Ranks job("train_rank", 2, {"exits", folder.path().string()}, folder.path().string());
  CHECK(job.wait_all() == std::vector<int>{8, 0});
  CHECK_THAT(job.err(0), Catch::Contains("rank 1 lost at step 3 in "));
}

TEST_CASE("An exception ends its own rank with the exception, and the others with its text",
          "[train][train_step][ranks]") {
  for (const int count : {2, 4}) {
    const TempDir folder;
    Ranks job("train_rank", count, {"throws", folder.path().string()}, folder.path().string());
    for (int rank = 0; rank < count; ++rank) {
      INFO(job.err(rank));
      CHECK(job.wait(rank) == (rank == 1 ? 1 : 8));
      CHECK_THAT(job.err(rank), Catch::Contains("row 17 is not a picture"));
      if (rank != 1) CHECK_THAT(job.err(rank), Catch::Contains("rank 1 failed at step 3"));
    }
  }
}

TEST_CASE("A rank that throws ends with its exception, also if another rank is lost meanwhile",
          "[train][train_step][ranks]") {
  const TempDir folder;
  Ranks job("train_rank", 2, {"throws_alone", folder.path().string()}, folder.path().string());
  CHECK(job.wait(0) == 256 + SIGKILL);
  CHECK(job.wait(1) == 1);
  CHECK_THAT(job.err(1), Catch::Contains("row 17 is not a picture"));
}

TEST_CASE("An exception inside backward ends that rank with it, and the others with its text",
          "[train][train_step][ranks]") {
  for (const int count : {2, 4}) {
    const TempDir folder;
    Ranks job("train_rank", count, {"throws_in_backward", folder.path().string()}, folder.path().string());
    for (int rank = 0; rank < count; ++rank) {
      INFO(job.err(rank));
      CHECK(job.wait(rank) == (rank == 1 ? 1 : 8));
      CHECK_THAT(job.err(rank), Catch::Contains("row 17 is not a picture"));
      if (rank != 1) CHECK_THAT(job.err(rank), Catch::Contains("rank 1 failed at step 3"));
    }
  }
}

TEST_CASE(
    "An exception after the last bucket is sent ends its own rank with the exception, and the others with its text",
    "[train][train_step][ranks]") {
  for (const int count : {2, 4}) {
    const TempDir folder;
    Ranks job("train_rank", count, {"throws_at_the_end", folder.path().string()}, folder.path().string());
    for (int rank = 0; rank < count; ++rank) {
      INFO(job.err(rank));
      CHECK(job.wait(rank) == (rank == 1 ? 1 : 8));
      CHECK_THAT(job.err(rank), Catch::Contains("row 17 is not a picture"));
      if (rank != 1) CHECK_THAT(job.err(rank), Catch::Contains("rank 1"));
    }
  }
}

TEST_CASE("A loss that does not use all parameters is an error that names them on every rank",
          "[train][train_step][ranks]") {
  const TempDir folder;
  Ranks job("train_rank", 2, {"unreached", folder.path().string()}, folder.path().string());
  for (int rank = 0; rank < 2; ++rank) {
    INFO(job.err(rank));
    CHECK(job.wait(rank) != 0);
    CHECK_THAT(job.err(rank), Catch::Contains("the loss did not reach out.weight, out.bias: set find_unused_param"));
  }
}

TEST_CASE("A step that exceeds the memory of one rank is retried by all ranks in parts", "[train][train_step][ranks]") {
  const TempDir folder;
  Ranks job("train_rank", 2, {"out_of_memory", folder.path().string()}, folder.path().string());
  for (int rank = 0; rank < 2; ++rank) {
    INFO(job.err(rank) << job.out(rank));
    REQUIRE(job.wait(rank) == 0);
    CHECK_THAT(job.out(rank), Catch::Contains("step 2 loss"));
    CHECK_THAT(job.out(rank), Catch::Contains("in 2 parts"));
    check_close(weights_of(folder, rank), weights_of_one_process());
  }
}

TEST_CASE("A stop request on one rank stops all ranks after the same step", "[train][train_step][ranks]") {
  const TempDir folder;
  Ranks job("train_rank", 2, {"stop", folder.path().string()}, folder.path().string());
  REQUIRE(job.wait_all() == std::vector<int>{0, 0});
  CHECK_THAT(job.out(0), Catch::EndsWith("stopped by 15 after step 3\n"));
  CHECK(job.out(0) == job.out(1));
  for (size_t i = 0; i < 4; ++i) CHECK(weights_of(folder, 0)[i].equal(weights_of(folder, 1)[i]));
}

TEST_CASE("A vote cast after the gradients were sent counts for the next step", "[train][train_step][ranks]") {
  const TempDir folder;
  Ranks job("train_rank", 2, {"stop_late", folder.path().string()}, folder.path().string());
  REQUIRE(job.wait_all() == std::vector<int>{0, 0});
  CHECK_THAT(job.out(0), Catch::EndsWith("stopped by 15 after step 4\n"));
  CHECK(job.out(0) == job.out(1));
}

TEST_CASE("Ranks started with different options all end with the option that differs", "[train][train_step][ranks]") {
  for (const auto& [scenario, text] :
       {std::pair{"digest", "error[dist.digest] batch_size: differs between ranks (got '16 on rank 1', expected '32'"},
        {"other_model", "error[dist.digest] parameter hidden.weight: differs between ranks (got 'Float [9, 8] on"}}) {
    const TempDir folder;
    Ranks job("train_rank", 2, {scenario, folder.path().string()}, folder.path().string());
    CHECK(job.wait_all() == std::vector<int>{8, 8});
    for (int rank = 0; rank < 2; ++rank) CHECK_THAT(job.err(rank), Catch::Contains(text));
  }
}
