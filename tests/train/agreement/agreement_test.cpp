// Agreement on a step, of one rank and of ranks whose hosts wait for one another.
#include "train/agreement/agreement.h"

#include <torch/torch.h>

#include "distributed/rank_threads.h"
#include "test_util.h"
#include "train/agreement/steps_in_flight.h"
#include "train/loop_util.h"
#include "train/retry/memory_recovery.h"
#include "trainkit/core/status.h"
#include "trainkit/optim/sgd.h"

using namespace trainkit;
using namespace trainkit::test;
using trainkit::detail::Agreement;
using trainkit::detail::make_agreement;
using trainkit::detail::MemoryRecovery;
using trainkit::detail::StepsInFlight;

namespace {

/// An agreement with what it needs.
struct AgreeingRank {
  explicit AgreeingRank(ProcessGroup* group = nullptr) {
    DeviceReplicatorOptions options;
    if (group) options.process_group = {group, [](ProcessGroup*) {}};
    devices = DeviceReplicator::create([] { return TinyNet(0); }, options).value();
    in_flight.emplace(trainkit::detail::devices_of(*devices));
    agreement = make_agreement(trainkit::detail::strategy_of(*devices), *in_flight, memory, /*graphs=*/nullptr,
                               /*replicas_meet=*/false);
  }
  bool fail(const std::string& reason, bool again) {
    return agreement->fail(1, {.reason = reason,
                               .again = again,
                               .reduced = true,
                               .weight = 0,
                               .runs = 1,
                               .skipped_update = [](const at::Tensor&) {}});
  }

  std::unique_ptr<DeviceReplicator> devices;
  MemoryRecovery memory{at::kCPU, nullptr};
  std::optional<StepsInFlight> in_flight;
  std::unique_ptr<Agreement> agreement;
};

}  // namespace

TEST_CASE("One rank follows its own requests in the step after them", "[train][agreement]") {
  AgreeingRank rank;
  Agreement& agreement = *rank.agreement;
  agreement.request_stop(2);
  agreement.request_stop(1);
  agreement.request_save();
  CHECK(agreement.settle(1, /*weight=*/4, /*expected=*/8) == Agreement::Outcome::kUpdate);
  CHECK(agreement.verdict().stop == 2);
  CHECK(agreement.verdict().save);
  StepMetrics metrics;
  agreement.end_step(metrics);
  CHECK(metrics.world_weight == 4);
  CHECK(agreement.settle(2, 4, 4) == Agreement::Outcome::kUpdate);
  CHECK(agreement.verdict().stop == 0);
  CHECK_FALSE(agreement.verdict().save);
}

TEST_CASE("Gradients are corrected by the weight that was expected", "[train][agreement]") {
  AgreeingRank rank;
  Agreement& agreement = *rank.agreement;
  static_cast<void>(agreement.settle(1, 4, 8));
  SGD optimizer;
  optimizer.add_param_group({.params = {{"a", at::zeros({2}).requires_grad_()}}});
  optimizer.add_param_group({.params = {{"b", at::zeros({3}, at::kDouble).requires_grad_()}}});
  for (const ParamGroup& group : optimizer.param_groups()) {
    at::Tensor(group.params[0].tensor).mutable_grad() = at::ones_like(group.params[0].tensor);
  }
  agreement.correct({&optimizer}, 4, rank.memory);
  CHECK(torch::equal(optimizer.gradients()[0], at::ones({2})));
  agreement.correct({&optimizer}, 8, rank.memory);
  CHECK(torch::equal(optimizer.gradients()[0], at::full({2}, 2.0)));
  CHECK(torch::equal(optimizer.gradients()[1], at::full({3}, 2.0, at::kDouble)));
  CHECK_FALSE(agreement.nothing_counts());
  static_cast<void>(agreement.settle(2, 0, 8));
  CHECK(agreement.nothing_counts());
  CHECK_FALSE(agreement.on_devices().blocked.defined());
}

TEST_CASE("One rank retries what it can, in smaller parts unless memory was freed", "[train][agreement]") {
  AgreeingRank rank;
  CHECK(rank.agreement->can_retry());
  CHECK(rank.fail("out of memory", /*again=*/true));
  CHECK_FALSE(rank.fail("broken", /*again=*/false));
  CHECK(rank.agreement->splits_retry(/*freed=*/false));
  CHECK_FALSE(rank.agreement->splits_retry(/*freed=*/true));
}

TEST_CASE("Ranks agree on the largest stop signal and on the sum of their weights", "[train][agreement]") {
  const auto texts = on_ranks(3, [](ProcessGroup& group) {
    AgreeingRank rank(&group);
    if (group.rank() == 1) rank.agreement->request_stop(2);
    if (group.rank() == 2) rank.agreement->send(1, 3);  // with the gradients
    const Agreement::Outcome outcome = rank.agreement->settle(1, group.rank() == 2 ? 3 : 1, 6);
    const StepVerdict& verdict = rank.agreement->verdict();
    const bool right = outcome == Agreement::Outcome::kUpdate && verdict.stop == 2 && verdict.weight == 5;
    return right ? absl::OkStatus() : absl::UnknownError("wrong verdict");
  });
  CHECK(texts == std::vector<std::string>(3, "ok"));
}

TEST_CASE("All ranks retry a step that ran out of memory on one, and repeat what they were asked for",
          "[train][agreement]") {
  const auto texts = on_ranks(2, [](ProcessGroup& group) {
    AgreeingRank rank(&group);
    Agreement& agreement = *rank.agreement;
    bool retries = false;
    if (group.rank() == 0) {
      agreement.request_save();
      retries = agreement.settle(1, 1, 2) == Agreement::Outcome::kRetry;
    } else {
      retries = agreement.can_retry() && rank.fail("out of memory", /*again=*/true);
    }
    const bool splits = agreement.splits_retry(/*freed=*/true);
    const bool updates = agreement.settle(1, 1, 2) == Agreement::Outcome::kUpdate;
    return retries && splits && updates && agreement.verdict().save ? absl::OkStatus() : absl::UnknownError("wrong");
  });
  CHECK(texts == std::vector<std::string>(2, "ok"));
}

TEST_CASE("A rank that fails for good is named to the others", "[train][agreement]") {
  const auto texts = on_ranks(2, [](ProcessGroup& group) {
    AgreeingRank rank(&group);
    if (group.rank() == 1) return rank.fail("no such file", false) ? absl::UnknownError("retries") : absl::OkStatus();
    if (rank.agreement->settle(1, 1, 2) != Agreement::Outcome::kFailed) return absl::UnknownError("did not notice");
    try {
      rank.agreement->throw_failure(1);
    } catch (...) {
      return status_from_current_exception();
    }
  });
  CHECK_THAT(texts[0], Catch::Contains("rank 1 failed at step 1: no such file"));
  CHECK(texts[1] == "ok");
}
