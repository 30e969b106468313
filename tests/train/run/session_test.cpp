// A run whose loop belongs to the caller, sources of batches other than a Prefetcher, events and states of the program.
#include "trainkit/train/session.h"

#include <thread>

#include "distributed/rank_threads.h"
#include "test_util.h"
#include "train/trainer_run.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/data/queue_source.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/checkpoint.h"

using namespace trainkit;
using namespace trainkit::test;
using Catch::Contains;

namespace {

TrainerOptions steps_of(int64_t steps, const std::string& folder = {}) {
  TrainerOptions options{.max_steps = steps, .log_every = 1, .output_dir = folder};
  if (!folder.empty()) options.save_every = 1000;
  return options;
}

/// A model on the CPU with its Trainer, from a fixed seed.
struct SeededRun {
  explicit SeededRun(const TrainerOptions& options) {
    torch::manual_seed(11);
    devices = DeviceReplicator::create([] { return TinyNet(); }).value();
    trainer.emplace(Trainer::create(*devices, AdamW({.lr = 1e-2}), options).value());
  }
  /// The same random numbers for each run, whatever ran before.
  Trainer& seeded() {
    torch::manual_seed(12);
    return *trainer;
  }
  NamedTensors weights() const {
    NamedTensors copies;
    for (const auto& [name, tensor] : named_tensors(*devices->module())) copies.emplace_back(name, tensor.clone());
    return copies;
  }
  std::unique_ptr<DeviceReplicator> devices;
  std::optional<Trainer> trainer;
};

std::vector<FieldSpec> tiny_fields() { return {{"x", at::kFloat, {8}}, {"y", at::kLong, {}}}; }

/// Batch `i` of a simulation: 4 rows, a function of i.
std::vector<at::Tensor> simulated(int64_t i) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(i) + 1);
  const at::Tensor x = at::randn({4, 8}, generator);
  return {x, x.slice(1, 0, 4).argmax(1)};
}

Batch simulated_batch(int64_t i) {
  return Batch(std::make_shared<const std::vector<FieldSpec>>(tiny_fields()), simulated(i));
}

/// Counts what the program has simulated.
struct Simulator {
  int64_t next = 0;
  StateDict state_dict() const { return {{"next", next}, {"history", at::arange(next)}}; }
  absl::Status load_state_dict(const StateDict& state) {
    const auto saved = get_state<int64_t>(state, "next");
    if (saved.ok()) next = *saved;
    return saved.status();
  }
};

/// Writes down the events; may fail or stop at one of them.
struct Recorder final : Events {
  absl::Status note(std::string text) {
    seen.push_back(std::move(text));
    return seen.back() == fails_at ? answer : absl::OkStatus();
  }
  absl::Status on_begin(int64_t step) override { return note("begin " + std::to_string(step)); }
  absl::Status on_step(int64_t step, const StepMetrics& metrics) override {
    return metrics.loss.defined() ? note("step " + std::to_string(step)) : absl::InternalError("no loss");
  }
  absl::Status on_epoch(int64_t epoch) override { return note("epoch " + std::to_string(epoch)); }
  absl::Status on_evaluation(int64_t step, Metrics& metrics) override {
    metrics["seen"] = static_cast<double>(seen.size());
    return note("evaluation " + std::to_string(step));
  }
  absl::Status on_save(int64_t step) override { return note("save " + std::to_string(step)); }
  absl::Status on_end(const TrainerResult& result) override { return note("end " + std::to_string(result.steps)); }
  std::vector<std::string> seen;
  std::string fails_at;
  absl::Status answer;
};

}  // namespace

TEST_CASE("A session has the bits and records of fit()", "[train][session]") {
  TrainerOptions options = steps_of(0);
  options.max_epochs = 2;
  options.grad_accum_steps = 2;
  options.eval_every = 5;
  const auto validation = tiny_loader(16, 8);
  RecordingLogger fitted_log, stepped_log;
  SeededRun fitted(options), stepped(options);
  const auto fitted_loader = tiny_loader(52, 4), stepped_loader = tiny_loader(52, 4);
  const TrainerResult whole =
      fitted.seeded().fit(*fitted_loader, tiny_loss, {.validation = validation.get(), .logger = &fitted_log}).value();
  Session session = stepped.seeded()
                        .begin(*stepped_loader, tiny_loss, {.validation = validation.get(), .logger = &stepped_log})
                        .value();
  int64_t steps = 0;
  while (session.step().value()) {
    ++steps;
    CHECK(session.progress().step == steps);
    CHECK(std::isfinite(session.progress().loss));
  }
  CHECK(session.progress().has_ended);
  CHECK_FALSE(session.step().value());
  const TrainerResult result = session.finish().value();
  CHECK(session.finish().value().steps == 14);
  CHECK(steps == 14);
  CHECK(result.reason == ExitReason::kMaxEpochs);
  CHECK(result.evaluation == whole.evaluation);
  CHECK(same_bits(stepped.weights(), fitted.weights()));
  REQUIRE(stepped_log.records.size() == fitted_log.records.size());
  for (size_t i = 0; i < fitted_log.records.size(); ++i) {
    CHECK(stepped_log.records[i].step == fitted_log.records[i].step);
    CHECK(*stepped_log.records[i].find("loss") == *fitted_log.records[i].find("loss"));
  }
}

TEST_CASE("Batches of the caller, of a queue and of a TrainStep have the same bits", "[train][session]") {
  SeededRun by_caller(steps_of(0)), by_queue(steps_of(0));
  Session session = by_caller.seeded().begin(tiny_loss).value();
  for (int64_t i = 0; i < 10; ++i) REQUIRE(session.step(simulated_batch(i)).value());
  const TrainerResult result = session.finish().value();
  CHECK(result.reason == ExitReason::kEnded);
  CHECK(result.steps == 10);
  CHECK(result.epochs == 0);

  const auto queue = QueueSource::create(tiny_fields(), {.capacity = 2}).value();
  std::thread host([&] {
    for (int64_t i = 0; i < 10; ++i) queue->push(simulated(i)).IgnoreError();
    queue->close();
  });
  const TrainerResult fitted = by_queue.seeded().fit(*queue, tiny_loss).value();
  host.join();
  CHECK(fitted.reason == ExitReason::kEndOfData);
  CHECK(fitted.steps == 10);
  CHECK(same_bits(by_caller.weights(), by_queue.weights()));

  torch::manual_seed(11);
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  AdamW optimizer({.lr = 1e-2});
  TrainStep step(*devices, optimizer);
  torch::manual_seed(12);
  const LossFunction loss(tiny_loss);
  for (int64_t i = 0; i < 10; ++i) step(simulated_batch(i), loss);
  CHECK(same_bits(named_tensors(*devices->module()), by_queue.weights()));
}

TEST_CASE("The end of the source or finish() takes the batches of an incomplete accumulation", "[train][session]") {
  TrainerOptions options = steps_of(0);
  options.grad_accum_steps = 2;
  SeededRun by_caller(options), by_queue(options);
  Session session = by_caller.seeded().begin(tiny_loss).value();
  for (int64_t i = 0; i < 5; ++i) REQUIRE(session.step(simulated_batch(i)).value());
  CHECK(session.progress().step == 2);
  CHECK(session.finish().value().steps == 3);
  const auto queue = QueueSource::create(tiny_fields(), {.capacity = 8}).value();
  for (int64_t i = 0; i < 5; ++i) REQUIRE(queue->push(simulated(i)).ok());
  queue->close();
  CHECK(by_queue.seeded().fit(*queue, tiny_loss).value().steps == 3);
  CHECK(same_bits(by_caller.weights(), by_queue.weights()));
}

TEST_CASE("A stopped run with a queue and a simulator resumes with the bits of a whole run",
          "[train][session][resume]") {
  const auto run_to = [](int64_t pushed, int64_t stop_after, const std::string& folder, bool resumes) {
    TrainerOptions options = steps_of(12, folder);
    if (resumes) options.resume = "latest";
    SeededRun one(options);
    Simulator simulator;
    const auto queue = QueueSource::create(tiny_fields(), {.capacity = 20}).value();
    RecordingLogger logger;
    Session session =
        one.trainer->begin(*queue, tiny_loss, {.state = {{"simulator", simulator}}, .logger = &logger}).value();
    for (; simulator.next < pushed; ++simulator.next) REQUIRE(queue->push(simulated(simulator.next)).ok());
    while (session.step().value()) {
      if (session.progress().step == stop_after) session.request_stop();
      if (session.progress().step == stop_after) break;
    }
    if (stop_after > 0) CHECK(session.step().value());  // the request counts for the next step
    if (stop_after > 0) CHECK_FALSE(session.step().value());
    const TrainerResult result = session.finish().value();
    CHECK(result.reason == (stop_after > 0 ? ExitReason::kStopped : ExitReason::kMaxSteps));
    return one.weights();
  };
  const TempDir dir;
  const NamedTensors whole = run_to(15, 0, dir / "whole", false);
  run_to(9, 4, dir / "stopped", false);  // 5 trained, 4 wait
  CHECK(same_bits(run_to(15, 0, dir / "stopped", true), whole));
}

TEST_CASE("Another thread asks for a checkpoint", "[train][session]") {
  const TempDir dir;
  SeededRun one(steps_of(0, dir / "run"));
  Session session = one.trainer->begin(tiny_loss).value();
  REQUIRE(session.step(simulated_batch(0)).value());
  std::thread([&] { session.request_save(); }).join();
  REQUIRE(session.step(simulated_batch(1)).value());
  REQUIRE(session.step(simulated_batch(2)).value());
  REQUIRE(session.finish().ok());
  CHECK(verify_checkpoint({.folder = dir / "run/checkpoints", .step = 2}).ok());
  CHECK(verify_checkpoint({.folder = dir / "run/checkpoints", .step = 3}).ok());
}

TEST_CASE("Misuse of a session is refused in one line and changes nothing", "[train][session]") {
  SeededRun one(steps_of(0));
  const auto problem = [](const absl::Status& status) { return std::string(status.message()); };
  Session session = one.trainer->begin(tiny_loss).value();
  CHECK_THAT(problem(one.trainer->begin(tiny_loss).status()), Contains("a session that has not ended"));
  const auto loader = tiny_loader(8, 4);
  CHECK_THAT(problem(session.step().status()), Contains("no source of batches"));
  { const Session dropped = std::move(session); }

  std::optional<Session> open;
  std::string inside, second;
  const auto loss = [&](TinyNet& model, const Batch& batch) {
    inside = problem(open->step(simulated_batch(9)).status());
    second = problem(one.trainer->begin(tiny_loss).status());
    return tiny_loss(model, batch);
  };
  open.emplace(one.trainer->begin(loss).value());
  REQUIRE(open->step(simulated_batch(0)).value());
  CHECK_THAT(inside, Contains("a call of this session is in progress"));
  CHECK_THAT(second, Contains("a session that has not ended"));
  CHECK(open->progress().step == 1);
  open->finish().value();

  TrainerOptions epochs = steps_of(0);
  epochs.max_epochs = 1;
  SeededRun other(epochs);
  CHECK_THAT(problem(other.trainer->begin(tiny_loss).status()), Contains("max_epochs"));
  CHECK_THAT(problem(one.trainer->fit(*loader, tiny_loss).status()), Contains("max_steps must be given"));
  Simulator simulator;
  CHECK_THAT(problem(one.trainer->begin(tiny_loss, {.state = {{"a.b", simulator}}}).status()), Contains("a.b"));
}

TEST_CASE("An error ends a session, and stays", "[train][session]") {
  SeededRun one(steps_of(0));
  Session session = one.trainer
                        ->begin([&](TinyNet& model, const Batch& batch) {
                          TORCH_CHECK(batch.size() == 4, "a bad batch");
                          return tiny_loss(model, batch);
                        })
                        .value();
  REQUIRE(session.step(simulated_batch(0)).value());
  const auto failed = session.step(simulated_batch(1).slice(0, 2));
  CHECK_THAT(std::string(failed.status().message()), Contains("step 2") && Contains("a bad batch"));
  CHECK(session.step(simulated_batch(1)).status() == failed.status());
  CHECK(session.finish().status() == failed.status());
  CHECK(session.progress().has_ended);
  CHECK(one.trainer->begin(tiny_loss).ok());
}

TEST_CASE("A session may step in another thread each time", "[train][session]") {
  const auto weights_of = [](bool in_threads) {
    SeededRun one(steps_of(0));
    Session session = one.trainer->begin(tiny_loss).value();
    for (int64_t i = 0; i < 4; ++i) {
      const auto step = [&] { CHECK(session.step(simulated_batch(i)).value()); };
      in_threads ? std::thread(step).join() : step();
    }
    CHECK(session.finish().value().steps == 4);
    return one.weights();
  };
  CHECK(same_bits(weights_of(true), weights_of(false)));
}

TEST_CASE("Events come in order, and may add metrics", "[train][session]") {
  const TempDir dir;
  TrainerOptions options = steps_of(0, dir / "run");
  options.max_epochs = 2;
  options.eval_every = options.save_every = 3;
  const auto loader = tiny_loader(16, 8), validation = tiny_loader(8, 8);
  Recorder events;
  SeededRun one(options);
  const TrainerResult result =
      one.trainer->fit(*loader, tiny_loss, {.validation = validation.get(), .events = &events}).value();
  CHECK(events.seen == std::vector<std::string>{"begin 0", "step 1", "step 2", "epoch 1", "step 3", "evaluation 3",
                                                "save 3", "step 4", "epoch 2", "evaluation 4", "save 4", "end 4"});
  CHECK(result.evaluation.at("seen") == 9);

  options.resume = "latest";
  options.max_epochs = 3;
  Recorder after;
  SeededRun two(options);
  const auto again = tiny_loader(16, 8);
  REQUIRE(two.trainer->fit(*again, tiny_loss, {.validation = validation.get(), .events = &after}).ok());
  CHECK(after.seen.front() == "begin 4");
  CHECK(after.seen.at(1) == "step 5");
}

TEST_CASE("An event may fail or stop the run", "[train][session]") {
  const auto at = GENERATE(as<std::string>(), "begin 0", "step 2", "epoch 1", "evaluation 2", "save 2");
  const bool stops = GENERATE(false, true);
  CAPTURE(at, stops);
  const TempDir dir;
  TrainerOptions options = steps_of(0, dir / "run");
  options.max_epochs = 3;
  options.eval_every = options.save_every = 2;
  const auto loader = tiny_loader(16, 8), validation = tiny_loader(8, 8);
  Recorder events;
  events.fails_at = at;
  events.answer = stops ? absl::CancelledError("enough") : absl::InternalError("the disk is on fire");
  SeededRun one(options);
  const auto result = one.trainer->fit(*loader, tiny_loss, {.validation = validation.get(), .events = &events});
  if (!stops) {
    CHECK_THAT(std::string(result.status().message()),
               Contains("the disk is on fire") && Contains("on_" + at.substr(0, at.find(' '))));
    return;
  }
  REQUIRE(result.ok());
  CHECK(result->reason == ExitReason::kStopped);
  CHECK(result->steps <= 3);
}

TEST_CASE("Ranks end together: at the end of a queue, and after an event that fails on one of them",
          "[train][session]") {
  const bool fails = GENERATE(false, true);
  const auto texts = on_ranks(2, [&](ProcessGroup& group) -> absl::Status {
    torch::manual_seed(11);
    auto devices =
        DeviceReplicator::create([] { return TinyNet(); }, {.process_group = {&group, [](ProcessGroup*) {}}}).value();
    auto trainer = Trainer::create(*devices, SGD({.lr = 0.01}), steps_of(50)).value();
    const auto queue = QueueSource::create(tiny_fields(), {.capacity = 20}).value();
    // Rank 1 has 7 batches, rank 0 has 9.
    for (int64_t i = 0; i < 9 - 2 * group.rank(); ++i) TRAINKIT_RETURN_IF_ERROR(queue->push(simulated(i)));
    queue->close();
    Recorder events;
    if (fails && group.rank() == 1) events.fails_at = "step 3";
    events.answer = absl::InternalError("broken");
    const auto result = trainer.fit(*queue, tiny_loss, {.events = &events});
    if (!fails) return result.ok() && result->steps == 7 ? absl::OkStatus() : absl::InternalError("steps");
    const std::string expected = group.rank() == 1 ? "broken" : "another rank";
    const bool is_right = !result.ok() && result.status().message().find(expected) != std::string_view::npos;
    return is_right && events.seen.back() == "step 4" ? absl::OkStatus()
                                                      : absl::InternalError(result.status().ToString());
  });
  for (const std::string& text : texts) CHECK(text == "ok");
}

TEST_CASE("An empty queue of one rank names that rank to the others", "[train][session]") {
  const auto texts = on_ranks(2, [&](ProcessGroup& group) -> absl::Status {
    auto devices =
        DeviceReplicator::create([] { return TinyNet(); }, {.process_group = {&group, [](ProcessGroup*) {}}}).value();
    auto trainer = Trainer::create(*devices, SGD({.lr = 0.01}), steps_of(50)).value();
    const auto queue =
        QueueSource::create(tiny_fields(), {.capacity = 20, .timeout = std::chrono::milliseconds(200)}).value();
    for (int64_t i = 0; i < 4 - 2 * group.rank(); ++i) TRAINKIT_RETURN_IF_ERROR(queue->push(simulated(i)));
    const absl::Status status = trainer.fit(*queue, tiny_loss).status();
    const std::string expected = group.rank() == 1 ? "the queue was empty" : "rank 1 has no batch";
    return status.message().find(expected) != std::string_view::npos ? absl::OkStatus() : status;
  });
  for (const std::string& text : texts) CHECK(text == "ok");
}

TEST_CASE("Each rank's state comes back to it", "[train][session][resume]") {
  const TempDir dir;
  const auto run = [&](ProcessGroup& group, bool resumes) -> absl::Status {
    auto devices =
        DeviceReplicator::create([] { return TinyNet(); }, {.process_group = {&group, [](ProcessGroup*) {}}}).value();
    TrainerOptions options = steps_of(resumes ? 4 : 2, dir / "run");
    if (resumes) options.resume = "latest";
    auto trainer = Trainer::create(*devices, SGD({.lr = 0.01}), options).value();
    Simulator simulator{.next = resumes ? 0 : 100 + 11 * group.rank()};
    auto session = trainer.begin(tiny_loss, {.state = {{"simulator", simulator}}});
    TRAINKIT_RETURN_IF_ERROR(session.status());
    const int64_t expected = 100 + 11 * group.rank();
    if (simulator.next != expected) return absl::InternalError("next is " + std::to_string(simulator.next));
    for (int64_t i = 0; session->step(simulated_batch(i + group.rank())).value();) ++i;
    return session->finish().status();
  };
  for (const bool resumes : {false, true}) {
    for (const std::string& text : on_ranks(2, [&](ProcessGroup& group) { return run(group, resumes); })) {
      CHECK(text == "ok");
    }
  }
}
