// Every kind of failure at every call of a save: the previous or the new checkpoint exists and verifies.
#include <ATen/Functions.h>

#include "fault_disk.h"
#include "test_util.h"
#include "trainkit/core/random.h"
#include "trainkit/train/checkpoint.h"

using namespace trainkit;
using test::Fault;
using test::FaultDisk;
using test::PowerLoss;

namespace {

constexpr char kOutput[] = "/run";

/// A small checkpoint that differs for each `salt`.
CheckpointContents checkpoint_of(int64_t salt) {
  const auto value = static_cast<double>(salt);
  return {.model = {{"w", at::full({3, 2}, value)}, {"b", at::full({2}, value + 1)}},
          .optimizer = {{"state.w.exp_avg", at::full({3, 2}, value + 2)}},
          .state = {{"salt", salt}, {"generator", at::full({16}, salt % 100, at::kByte)}},
          .files = {{"0000.rows", 8, [salt](WritableFile& file) { return file.append(&salt, sizeof(salt)); }}}};
}

bool is_of(const CheckpointContents& contents, int64_t salt) {
  const CheckpointContents expected = checkpoint_of(salt);
  const auto same = [](NamedTensors a, NamedTensors b) {
    std::sort(a.begin(), a.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
    std::sort(b.begin(), b.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const auto& x, const auto& y) { return x.first == y.first && at::equal(x.second, y.second); });
  };
  return same(contents.model, expected.model) && same(contents.optimizer, expected.optimizer) &&
         get_state<int64_t>(contents.state, "salt").value_or(-1) == salt;
}

/// Earlier saves, then the save that fails. The salt of a save is its position in the sequence.
struct Scenario {
  const char* name;
  int keep_last;
  std::vector<int64_t> before;
  int64_t step;
};

const Scenario kScenarios[] = {
    {"the first save", 3, {}, 10},
    {"a later save", 3, {10}, 20},
    {"a save that drops the one before", 1, {10}, 20},
    {"a save that drops an older one", 2, {10, 20}, 30},
    {"the latest step again", 3, {10, 20}, 20},
    {"a step after a rollback", 3, {20, 10}, 20},
};

struct Outcome {
  absl::Status saved;
  std::string struck;
  int calls = 0;
};

/// One process on `disk`: opens the store and saves. The fault is armed for the save only.
Outcome save_once(FaultDisk& disk, const Scenario& scenario, int64_t step, int64_t salt, const Fault& fault = {}) {
  const Fs fs(disk);
  auto store = CheckpointStore::open(kOutput, {.keep_last = scenario.keep_last, .fs = &fs});
  REQUIRE(store.status() == absl::OkStatus());
  disk.arm(fault);
  Outcome outcome;
  outcome.saved = store->save(step, checkpoint_of(salt));
  outcome.struck = disk.struck();
  outcome.calls = disk.calls();
  return outcome;
}

std::unique_ptr<FaultDisk> disk_before(const Scenario& scenario) {
  auto disk = std::make_unique<FaultDisk>();
  int64_t salt = 0;
  for (const int64_t step : scenario.before)
    REQUIRE(save_once(*disk, scenario, step, salt++).saved == absl::OkStatus());
  disk->restart(PowerLoss::kAll);  // everything must have been on the disk
  return disk;
}

/// Salt of the latest checkpoint, after verification; -1 if there is none. Anything else fails the test.
int64_t latest_salt(FaultDisk& disk) {
  const Fs fs(disk);
  auto store = CheckpointStore::open(kOutput, {.fs = &fs});
  REQUIRE(store.status() == absl::OkStatus());
  const auto step = store->latest();
  if (absl::IsNotFound(step.status())) return -1;
  REQUIRE(step.status() == absl::OkStatus());
  const auto contents = store->load(*step);
  REQUIRE(contents.status() == absl::OkStatus());
  const int64_t salt = get_state<int64_t>(contents->state, "salt").value();
  REQUIRE(is_of(*contents, salt));
  const std::string rows = fs.read_file(CheckpointPath{store->path(), *step}.path() + "/source-0000.rows", 100).value();
  REQUIRE(rows == std::string(reinterpret_cast<const char*>(&salt), sizeof(salt)));
  return salt;
}

bool has_temporary(const FaultDisk& disk) {
  const auto paths = disk.paths();
  return std::any_of(paths.begin(), paths.end(),
                     [](const auto& path) { return path.find("/.tmp-") != std::string::npos; });
}

/// Runs `check(disk, outcome, new salt)` for a fault at every call of the scenario's save.
template <class Check>
void for_each_call(Fault fault, Check&& check) {
  for (const Scenario& scenario : kScenarios) {
    const auto salt = static_cast<int64_t>(scenario.before.size());
    const int calls = save_once(*disk_before(scenario), scenario, scenario.step, salt).calls;
    REQUIRE(calls > 30);
    for (fault.at = 0; fault.at < calls; ++fault.at) {
      const auto disk = disk_before(scenario);
      const Outcome outcome = save_once(*disk, scenario, scenario.step, salt, fault);
      CAPTURE(scenario.name, fault.kind, fault.at, fault.error, outcome.struck, outcome.saved.ToString());
      check(*disk, outcome, scenario, salt);
    }
  }
}

struct Loss {
  PowerLoss loss;
  uint64_t seed;
};
const Loss kLosses[] = {{PowerLoss::kNone, 0},   {PowerLoss::kAll, 0},    {PowerLoss::kRandom, 1},
                        {PowerLoss::kRandom, 2}, {PowerLoss::kRandom, 3}, {PowerLoss::kRandom, 4},
                        {PowerLoss::kRandom, 5}, {PowerLoss::kRandom, 6}, {PowerLoss::kRandom, 7},
                        {PowerLoss::kRandom, 8}};

/// Ends the process; a random power loss keeps a different part at every call.
void restart(FaultDisk& disk, const Loss& loss, const Outcome& outcome, int64_t salt) {
  disk.restart(loss.loss, hash_key(loss.seed, outcome.calls, salt));
}

}  // namespace

TEST_CASE("A process that dies at any call of a save leaves the previous checkpoint or the new one",
          "[faults][checkpoint]") {
  for (const auto kind : {Fault::kCrash, Fault::kCrashAfter}) {
    for (const Loss& loss : kLosses) {
      for_each_call({.kind = kind, .at = 0, .error = 0},
                    [&](FaultDisk& disk, const Outcome& outcome, const Scenario&, int64_t salt) {
                      CAPTURE(loss.loss, loss.seed);
                      restart(disk, loss, outcome, salt);
                      const int64_t found = latest_salt(disk);
                      REQUIRE((found == salt || (found == salt - 1 && !outcome.saved.ok())));
                      REQUIRE_FALSE(has_temporary(disk));  // opening the store removed temporary files
                    });
    }
  }
}

TEST_CASE("A save that is interrupted or cut short at any call succeeds", "[faults][checkpoint]") {
  for (const Fault& fault :
       {Fault{.kind = Fault::kError, .at = 0, .error = EINTR}, Fault{.kind = Fault::kShort, .at = 0, .error = 0}}) {
    for_each_call(fault, [&](FaultDisk& disk, const Outcome& outcome, const Scenario&, int64_t salt) {
      REQUIRE(outcome.saved == absl::OkStatus());
      disk.restart(PowerLoss::kAll);
      REQUIRE(latest_salt(disk) == salt);
    });
  }
}

TEST_CASE("A save that fails at any call exits with 6, never logs 'saved', and the next one succeeds",
          "[faults][checkpoint]") {
  for (const auto kind : {Fault::kError, Fault::kErrorOn}) {
    for (const int error : {EIO, ENOSPC, EDQUOT, EROFS}) {
      for_each_call({.kind = kind, .at = 0, .error = error},
                    [&](FaultDisk& disk, const Outcome& outcome, const Scenario& scenario, int64_t salt) {
                      disk.arm({});
                      if (!outcome.saved.ok()) {
                        REQUIRE(exit_code(outcome.saved) == ExitCode::kStorage);
                        REQUIRE(error_of(outcome.saved)->where.starts_with(kOutput));
                      }
                      const int64_t found = latest_salt(disk);
                      REQUIRE((found == salt || (found == salt - 1 && !outcome.saved.ok())));
                      REQUIRE(save_once(disk, scenario, scenario.step + 10, salt + 100).saved == absl::OkStatus());
                      REQUIRE(latest_salt(disk) == salt + 100);
                    });
    }
  }
}

TEST_CASE("A power loss after a failed save loses neither the old checkpoint nor the new one", "[faults][checkpoint]") {
  for (const Loss& loss : kLosses) {
    for_each_call({.kind = Fault::kError, .at = 0, .error = EIO},
                  [&](FaultDisk& disk, const Outcome& outcome, const Scenario&, int64_t salt) {
                    CAPTURE(loss.loss, loss.seed);
                    restart(disk, loss, outcome, salt);
                    const int64_t found = latest_salt(disk);
                    REQUIRE((found == salt || (found == salt - 1 && !outcome.saved.ok())));
                  });
  }
}

TEST_CASE("A save that fails before its checkpoint is renamed leaves no part of it", "[faults][checkpoint]") {
  const Scenario& scenario = kScenarios[1];
  int failed = 0;
  for_each_call({.kind = Fault::kError, .at = 0, .error = ENOSPC},
                [&](FaultDisk& disk, const Outcome& outcome, const Scenario& now, int64_t) {
                  if (now.name != scenario.name || outcome.saved.ok()) return;
                  ++failed;
                  REQUIRE_FALSE(has_temporary(disk));
                });
  CHECK(failed > 20);
}

TEST_CASE("A full disk is an error with the needed and free bytes, before anything is written",
          "[faults][checkpoint]") {
  const auto disk = disk_before(kScenarios[1]);
  const auto before = disk->paths();
  disk->free_bytes = 1000;
  const Outcome outcome = save_once(*disk, kScenarios[1], 20, 1);
  const auto error = error_of(outcome.saved);
  REQUIRE(error);
  CHECK(exit_code(outcome.saved) == ExitCode::kStorage);
  CHECK(absl::IsResourceExhausted(outcome.saved));
  CHECK(error->got == "1,000 bytes free");
  CHECK(error->expected.find("KiB") != std::string::npos);
  CHECK(disk->paths() == before);
  CHECK(latest_salt(*disk) == 0);
}

TEST_CASE("Without a rename that exchanges, the latest step cannot be replaced, and any other can",
          "[faults][checkpoint]") {
  const auto disk = disk_before(kScenarios[4]);
  disk->can_exchange = false;
  const Outcome again = save_once(*disk, kScenarios[4], 20, 7);
  CHECK(exit_code(again.saved) == ExitCode::kStorage);
  CHECK(latest_salt(*disk) == 1);
  CHECK_FALSE(has_temporary(*disk));
  CHECK(save_once(*disk, kScenarios[4], 10, 8).saved == absl::OkStatus());
  CHECK(latest_salt(*disk) == 8);
}

TEST_CASE("A checkpoint stays saved if retention fails, and the next save retries the deletion",
          "[faults][checkpoint]") {
  const Scenario scenario = {"", 1, {10}, 20};
  const auto disk = disk_before(scenario);
  const Fs fs(*disk);
  auto store = CheckpointStore::open(kOutput, {.keep_last = 1, .fs = &fs}).value();
  disk->arm({});
  REQUIRE(store.save(20, checkpoint_of(1)).ok());
  const int calls = disk->calls();
  CHECK(store.steps().value() == std::vector<int64_t>{20});
  int unclean = 0;
  for (int at = 0; at < calls; ++at) {
    const int64_t step = 30 + 10 * at;
    disk->arm({.kind = Fault::kError, .at = at, .error = EIO});
    const absl::Status saved = store.save(step, checkpoint_of(at));
    disk->arm({});
    unclean += saved.ok() && !store.retention_status().ok();
    REQUIRE(store.save(step + 5, checkpoint_of(at)).ok());
    REQUIRE(store.retention_status() == absl::OkStatus());
    REQUIRE(store.steps().value() == std::vector<int64_t>{step + 5});
  }
  CHECK(unclean > 3);
}
