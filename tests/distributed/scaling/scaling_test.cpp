#include "trainkit/distributed/scaling.h"

#include <numeric>

#include "test_util.h"

using namespace trainkit;

namespace {

constexpr Link kFast{1e-6, 100e9}, kSlow{1e-5, 1e9};

Cluster one_machine(int64_t devices, AllReduceAlgorithm algorithm = AllReduceAlgorithm::kRing) {
  return {.devices_per_node = devices, .inside = kSlow, .algorithm = algorithm};
}

}  // namespace

TEST_CASE("A single device needs no all-reduce, and its step time is the measured one") {
  CHECK(all_reduce_seconds(1 << 20, one_machine(1)) == 0);
  const ScalingPrediction alone = predict_scaling(make_step_cost(0.3, 100 << 20), one_machine(1));
  CHECK(alone.step_seconds == Approx(0.3));
  CHECK(alone.speedup == Approx(1));
  CHECK(alone.efficiency == Approx(1));
  CHECK(alone.exposed_seconds == 0);
}

TEST_CASE("The votes of graphs are one more small all-reduce") {
  const StepCost step = make_step_cost(0.3, 100 << 20);
  const ScalingPrediction eager = predict_scaling(step, one_machine(4));
  const ScalingPrediction graphs = predict_scaling(step, one_machine(4), {.graphs = true});
  CHECK(graphs.messages == eager.messages + 1);
  CHECK(graphs.sent_bytes == eager.sent_bytes + 2 * 3 * (4 + 4) * 8 / 4);
  CHECK(graphs.step_seconds > eager.step_seconds);
}

TEST_CASE("A ring takes 2 (n - 1) rounds with messages of 1/n") {
  // 4 devices, 4 MB: 6 rounds of 1 MB at 1 GB/s and 10 us
  CHECK(all_reduce_seconds(4'000'000, one_machine(4)) == Approx(6 * (1e-5 + 1e-3)));
  CHECK(all_reduce_seconds(4'000'000, one_machine(2)) == Approx(2 * (1e-5 + 2e-3)));
}

TEST_CASE("A ring over machines is as fast as its slowest link") {
  const Cluster two{
      .devices_per_node = 2, .nodes = 2, .inside = kFast, .between = kSlow, .algorithm = AllReduceAlgorithm::kRing};
  CHECK(all_reduce_seconds(4'000'000, two) == Approx(6 * (1e-5 + 1e-3)));
}

TEST_CASE("The latency of a tree grows with the logarithm of the device count, and its bandwidth term is constant") {
  const auto tree = [](int64_t devices, int64_t bytes) {
    return all_reduce_seconds(bytes, one_machine(devices, AllReduceAlgorithm::kTree));
  };
  CHECK(tree(2, 1'000'000) == Approx(2 * 1e-5 + 2e-3));
  CHECK(tree(64, 1'000'000) == Approx(2 * 6 * 1e-5 + 2e-3));
  const Cluster machines{
      .devices_per_node = 8, .nodes = 16, .inside = kFast, .between = kSlow, .algorithm = AllReduceAlgorithm::kTree};
  CHECK(all_reduce_seconds(1'000'000, machines) == Approx(2 * (7 * 1e-6 + 4 * 1e-5) + 2e-3));
}

TEST_CASE("The best algorithm is a tree for small messages on many devices, a ring for large ones") {
  for (const int64_t bytes : {int64_t{1000}, int64_t{100'000'000}}) {
    const double ring = all_reduce_seconds(bytes, one_machine(64, AllReduceAlgorithm::kRing));
    const double tree = all_reduce_seconds(bytes, one_machine(64, AllReduceAlgorithm::kTree));
    CHECK((bytes == 1000 ? tree < ring : ring < tree));
    CHECK(all_reduce_seconds(bytes, one_machine(64, AllReduceAlgorithm::kBest)) == std::min(ring, tree));
  }
}

TEST_CASE("A step is divided into DDP's buckets: 1 MiB, then 25 MiB each, and the remainder") {
  const StepCost step = make_step_cost(0.3, 60 << 20);
  CHECK(step.bucket_bytes == std::vector<int64_t>{1 << 20, 25 << 20, 25 << 20, 9 << 20});
  CHECK(step.seconds() == Approx(0.3));
  CHECK(step.backward_seconds == Approx(2 * step.forward_seconds));
  CHECK(make_step_cost(1, 0).bucket_bytes.empty());
  CHECK(make_step_cost(1, 100).bucket_bytes == std::vector<int64_t>{100});
}

TEST_CASE("With accumulation, only the last backward hides communication") {
  const StepCost step = make_step_cost(1.2, 1000, {.update_share = 0, .micro_steps = 4});
  CHECK(step.backward_seconds == Approx(0.2));
  CHECK(step.forward_seconds == Approx(1.0));
}

TEST_CASE("Communication hidden by backward costs only the last bucket") {
  // Two buckets, 1 s of backward, 0.1 s each: the first is ready at 0.5 and hidden, the second at 1.0.
  const StepCost step{
      .forward_seconds = 0.5, .backward_seconds = 1, .update_seconds = 0.1, .bucket_bytes = {100'000'000, 100'000'000}};
  const Cluster two{.devices_per_node = 2, .inside = {0, 1e9}, .algorithm = AllReduceAlgorithm::kRing};
  const ScalingPrediction hidden = predict_scaling(step, two);
  CHECK(hidden.communication_seconds == Approx(0.2));
  CHECK(hidden.exposed_seconds == Approx(0.1));
  CHECK(hidden.step_seconds == Approx(1.7));
  CHECK(hidden.speedup == Approx(2 * 1.6 / 1.7));
  CHECK(hidden.efficiency == Approx(1.6 / 1.7));
}

TEST_CASE("Communication that uses the compute device itself hides nothing") {
  const StepCost step{
      .forward_seconds = 0.5, .backward_seconds = 1, .update_seconds = 0, .bucket_bytes = {100'000'000, 100'000'000}};
  const Cluster two{.devices_per_node = 2, .inside = {0, 1e9}, .algorithm = AllReduceAlgorithm::kRing};
  CHECK(predict_scaling(step, two, {.interference = 1}).exposed_seconds == Approx(0.2));
  CHECK(predict_scaling(step, two, {.interference = 0.5}).exposed_seconds == Approx(0.15));
}

TEST_CASE("The update of later buckets hides the all-gather of earlier ones") {
  // Two buckets that take 0.05 s in each direction; the last reduce-scatter and the last all-gather are exposed.
  StepCost step{
      .forward_seconds = 0, .backward_seconds = 1, .update_seconds = 0.4, .bucket_bytes = {100'000'000, 100'000'000}};
  const Cluster two{.devices_per_node = 2, .inside = {0, 1e9}, .algorithm = AllReduceAlgorithm::kRing};
  CHECK(predict_scaling(step, two, {.shards = true}).exposed_seconds == Approx(0.05 + 0.05));
  step.update_seconds = 0.02;  // of which each rank does half
  CHECK(predict_scaling(step, two, {.shards = true}).exposed_seconds == Approx(0.05 + 0.1 - 0.005));
}

TEST_CASE("A link slower than backward makes the buckets queue") {
  const StepCost step{
      .forward_seconds = 0, .backward_seconds = 0.1, .update_seconds = 0, .bucket_bytes = {100'000'000, 100'000'000}};
  const Cluster two{.devices_per_node = 2, .inside = {0, 1e8}, .algorithm = AllReduceAlgorithm::kRing};
  // The first is ready at 0.05; both take 1 s.
  CHECK(predict_scaling(step, two).step_seconds == Approx(2.05));
}

TEST_CASE("A fixed global batch shrinks the computation but not the communication") {
  const StepCost step{
      .forward_seconds = 1, .backward_seconds = 2, .update_seconds = 0.3, .bucket_bytes = {100'000'000}};
  const Cluster four{.devices_per_node = 4, .inside = {0, 1e9}, .algorithm = AllReduceAlgorithm::kRing};
  const ScalingPrediction strong = predict_scaling(step, four, {.batch_grows = false});
  CHECK(strong.step_seconds == Approx(0.25 + 0.5 + 0.15 + 0.3));
  CHECK(strong.speedup == Approx(3.3 / 1.2));
  CHECK(predict_scaling(step, four).speedup > strong.speedup);
}

TEST_CASE("Contention slows the computation by the devices of one machine, not by those of others") {
  const StepCost step{.forward_seconds = 1, .backward_seconds = 2, .update_seconds = 0, .bucket_bytes = {}};
  CHECK(predict_scaling(step, one_machine(3), {.contention = 0.1}).step_seconds == Approx(3.6));
  const Cluster apart{.nodes = 3, .between = kFast};
  CHECK(predict_scaling(step, apart, {.contention = 0.1}).step_seconds == Approx(3));
}

TEST_CASE("More devices never lower the predicted throughput of a growing batch on one kind of link with a tree") {
  const StepCost step = make_step_cost(0.1, 50 << 20);
  double last = 0;
  for (int64_t devices = 1; devices <= 1024; devices *= 2) {
    const double speedup = predict_scaling(step, one_machine(devices, AllReduceAlgorithm::kTree)).speedup;
    CHECK(speedup > last);
    last = speedup;
  }
}

TEST_CASE("A link fitted to two all-reduce times predicts both of them") {
  for (const int64_t devices : {2, 4, 8}) {
    const Cluster cluster{.devices_per_node = devices, .inside = {3e-5, 2.5e9}, .algorithm = AllReduceAlgorithm::kRing};
    const Link link =
        fit_link(devices, 4096, all_reduce_seconds(4096, cluster), 25 << 20, all_reduce_seconds(25 << 20, cluster))
            .value();
    CHECK(link.latency_seconds == Approx(3e-5));
    CHECK(link.bytes_per_second == Approx(2.5e9));
  }
  CHECK_FALSE(fit_link(2, 4096, 1e-3, 25 << 20, 1e-3).ok());
}

TEST_CASE("A link is given by its name or by two numbers") {
  CHECK(parse_link("12.5,20").value().latency_seconds == Approx(12.5e-6));
  CHECK(parse_link("12.5,20").value().bytes_per_second == Approx(20e9));
  for (const std::string_view name : link_names()) CHECK(parse_link(name).value().bytes_per_second > 1e9);
  for (const char* bad : {"", ",", "1,", ",1", "1,0", "-1,5", "1,nan", "1,inf", "1 ,2", "eth1000", "1,2,3"}) {
    const absl::Status status = parse_link(bad).status();
    CHECK(exit_code(status) == ExitCode::kUsage);
  }
  CHECK_THAT(error_text(parse_link("nvlnk4").status()), Catch::Contains("did you mean nvlink4?"));
}

TEST_CASE("Impossible clusters and steps are usage errors") {
  CHECK_THROWS_AS(all_reduce_seconds(1, {.devices_per_node = 0}), c10::ValueError);
  CHECK_THROWS_AS(all_reduce_seconds(1, {.devices_per_node = 2}), c10::ValueError);  // a link without bandwidth
  CHECK_THROWS_AS(make_step_cost(0, 1), c10::ValueError);
  CHECK_THROWS_AS(predict_scaling(make_step_cost(1, 1), {}, {.interference = 2}), c10::ValueError);
}
