#include "trainkit/data/queue_source.h"

#include <thread>

#include "test_util.h"
#include "trainkit/core/error.h"

namespace trainkit {
namespace {

using Catch::Contains;

std::vector<FieldSpec> fields() { return {{"x", at::kFloat, {2}}, {"y", at::kLong, {}}}; }

std::vector<at::Tensor> rows(int64_t first, int64_t count = 3) {
  return {torch::full({count, 2}, static_cast<double>(first)), torch::arange(first, first + count)};
}

int64_t first_of(const Batch& batch) { return batch["y"][0].item<int64_t>(); }

}  // namespace

TEST_CASE("A queue gives its batches in order, and ends after close()", "[data][queue]") {
  const auto queue = QueueSource::create(fields(), {.capacity = 2}).value();
  REQUIRE(queue->push(rows(0)).ok());
  REQUIRE(queue->try_push(rows(10)).value());
  CHECK_FALSE(queue->try_push(rows(20)).value());
  CHECK(queue->size() == 2);
  CHECK(first_of(*queue->next().value()) == 0);
  REQUIRE(queue->try_push(rows(20)).value());
  queue->close();
  CHECK(first_of(*queue->next().value()) == 10);
  CHECK(first_of(*queue->next().value()) == 20);
  CHECK_FALSE(queue->next().value());
  CHECK_FALSE(queue->next().value());
  CHECK(queue->push(rows(30)).code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("A full queue lets push() wait, and an empty one next()", "[data][queue]") {
  const auto queue = QueueSource::create(fields(), {.capacity = 1}).value();
  std::thread host([&] {
    for (int64_t i = 0; i < 50; ++i) queue->push(rows(i)).IgnoreError();
    queue->close();
  });
  int64_t count = 0;
  while (const auto batch = queue->next().value()) CHECK(first_of(*batch) == count++);
  host.join();
  CHECK(count == 50);
}

TEST_CASE("A queue refuses tensors that are not of its fields", "[data][queue]") {
  const auto queue = QueueSource::create(fields()).value();
  const auto problem = [&](std::vector<at::Tensor> tensors) {
    return error_of(queue->push(std::move(tensors))).value();
  };
  CHECK(problem({torch::zeros({3, 2})}).exit_code == ExitCode::kData);
  CHECK_THAT(problem({torch::zeros({3, 2})}).problem, Contains("one tensor for each of the 2 fields"));
  CHECK_THAT(problem({torch::zeros({3, 5}), torch::arange(3)}).problem, Contains("field x must have shape [2]"));
  CHECK_THAT(problem({torch::zeros({3, 2}), torch::zeros(3)}).problem, Contains("field y must be Long"));
  CHECK(queue->size() == 0);
  const auto options = QueueSource::create({}, {.capacity = 0});
  CHECK_THAT(std::string(options.status().message()), Contains("at least one field") && Contains("capacity"));
}

TEST_CASE("An empty queue ends the wait with the timeout, and stop() with its reason", "[data][queue]") {
  const auto queue = QueueSource::create(fields(), {.timeout = std::chrono::milliseconds(20)}).value();
  const auto late = queue->next();
  CHECK(late.status().code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(exit_code(late.status()) == ExitCode::kStalledWorker);
  CHECK_THAT(std::string(late.status().message()), Contains("the queue was empty for 20 ms"));
  const auto endless = QueueSource::create(fields()).value();
  std::thread host([&] { endless->stop(absl::UnavailableError("the camera is off")); });
  CHECK(endless->next().status() == absl::UnavailableError("the camera is off"));
  host.join();
  CHECK(endless->push(rows(0)) == absl::UnavailableError("the camera is off"));
}

TEST_CASE("The state of a queue has the batches that wait", "[data][queue]") {
  const auto queue = QueueSource::create(fields()).value();
  for (int64_t i = 0; i < 3; ++i) REQUIRE(queue->push(rows(i, 2 + i)).ok());
  REQUIRE(queue->next().value());
  const auto resumed = QueueSource::create(fields()).value();
  REQUIRE(resumed->push(rows(7)).ok());  // the host was faster than the resume
  REQUIRE(resumed->load_state_dict(queue->state_dict()).ok());
  CHECK(resumed->size() == 3);
  for (const int64_t first : {1, 2, 7}) CHECK(first_of(*resumed->next().value()) == first);
  const auto other = QueueSource::create({{"x", at::kFloat, {4}}, {"y", at::kLong, {}}}).value();
  CHECK(exit_code(other->load_state_dict(queue->state_dict())) == ExitCode::kWeights);
  CHECK(other->size() == 0);
}

}  // namespace trainkit
