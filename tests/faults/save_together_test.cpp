// Ranks that write one checkpoint together: every failure of the disk or of a rank leaves the previous checkpoint or
// the new one.
#include "train/divided/save_together.h"

#include <ATen/Functions.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "fault_disk.h"
#include "test_util.h"
#include "trainkit/core/random.h"
#include "trainkit/core/status.h"
#include "trainkit/train/checkpoint.h"

using namespace trainkit;
using test::Fault;
using test::FaultDisk;
using test::ForgetfulDisk;
using test::PowerLoss;
using trainkit::detail::DividedCheckpoint;
using trainkit::detail::DividedTensor;
using trainkit::detail::SavingRank;

namespace {

constexpr char kJointFolder[] = "/run";
constexpr int64_t kRanks = 3;

/// Messages between ranks in threads. A rank that has left makes the exchanges of all others fail.
class Meeting {
 public:
  at::Tensor exchange(int64_t rank, const at::Tensor& own) {
    std::unique_lock lock(mutex_);
    if (rank == leaver && rounds_ == leaves_at) {
      has_left_ = true;
      changed_.notify_all();
    }
    const int64_t round = rounds_;
    messages_[static_cast<size_t>(rank)] = own.clone();
    if (!has_left_ && ++arrived_ == kRanks) {
      all_ = at::stack(messages_);
      arrived_ = 0;
      ++rounds_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return rounds_ != round || has_left_; });
    if (rounds_ == round) throw absl::BadStatusOrAccess(absl::UnavailableError("a rank was lost"));
    return all_;
  }
  /// The rank that leaves in place of its exchange number `leaves_at`.
  int64_t leaver = -1, leaves_at = 0;
  int64_t rounds() const { return rounds_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<at::Tensor> messages_{static_cast<size_t>(kRanks)};
  at::Tensor all_;
  int64_t arrived_ = 0, rounds_ = 0;
  bool has_left_ = false;
};

/// The whole state that belongs to `salt`. `strided` is not row-major; rank 2 has nothing of `w`; rank 1 has a file.
CheckpointContents whole_state(int64_t salt) {
  const auto value = static_cast<double>(salt);
  const at::Tensor w = at::arange(15, at::kFloat).view({3, 5}).add(value);
  const at::Tensor strided = at::arange(24, at::kFloat).view({2, 3, 2, 2}).sub(value);
  return {.model = {{"w", w}, {"buffer", at::full({2}, value)}, {"strided", strided}},
          .optimizer = {{"state.w.exp_avg", w.mul(2)}, {"state.w.step", at::full({}, value)}},
          .state = {{"salt", salt}},
          .files = {{"0001.rows", 8, [salt](WritableFile& file) { return file.append(&salt, sizeof(salt)); }}}};
}

DividedCheckpoint divided() {
  const DividedTensor w{.kind = DividedTensor::kWeight, .part = {}, .shape = {3, 5}, .cuts = {0, 7, 15, 15}};
  const DividedTensor strided{.kind = DividedTensor::kAverage, .part = {}, .shape = {2, 3, 2, 2}, .cuts = {}};
  return {.model = {{"w", w}, {"strided", strided}}, .optimizer = {{"state.w.exp_avg", w}}};
}

/// The part of `rank` of the state.
CheckpointContents part_of_rank(int64_t rank, int64_t salt) {
  CheckpointContents part = whole_state(salt);
  const DividedCheckpoint places = divided();
  const auto keep = [&](NamedTensors& tensors, const auto& divided_tensors) {
    std::erase_if(tensors, [&](auto& named) {
      const auto found = divided_tensors.find(named.first);
      if (found == divided_tensors.end()) return rank > 0;
      const auto& cuts = found->second.cuts;
      const auto r = static_cast<size_t>(rank);
      if (cuts.empty()) {
        named.second = at::full({8}, static_cast<double>(rank));  // until it is gathered
      } else {
        named.second = named.second.reshape({-1}).narrow(0, cuts[r], cuts[r + 1] - cuts[r]).clone();
      }
      return false;
    });
  };
  keep(part.model, places.model);
  keep(part.optimizer, places.optimizer);
  if (rank > 0) part.state.clear();
  if (rank != 1) part.files.clear();
  return part;
}

/// What the ranks of one job do.
struct Job {
  Fs* fs = nullptr;
  std::array<const Fs*, kRanks> views = {};  // of each rank; null: fs
  Meeting meeting = {};
  int64_t gathers = 0;  // of everything
  int64_t round_bytes = 1 << 20;
  int64_t file_bytes = 8;
};

/// All ranks save; returns their results.
std::vector<absl::Status> save_all(Job& job, CheckpointStore& store, int64_t step, int64_t salt,
                                   const std::vector<absl::Status>& ready = std::vector<absl::Status>(kRanks)) {
  std::vector<absl::Status> results(kRanks);
  const DividedCheckpoint places = divided();
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const Fs* view = job.views[static_cast<size_t>(rank)];
      const SavingRank saving{.rank = rank,
                              .ranks = kRanks,
                              .store = rank == 0 ? &store : nullptr,
                              .fs = view ? view : job.fs,
                              .exchange = [&](const at::Tensor& own) { return job.meeting.exchange(rank, own); },
                              .gather =
                                  [&](CheckpointContents& contents, bool all) {
                                    if (rank > 0) return absl::OkStatus();
                                    job.gathers += all;
                                    const CheckpointContents whole = whole_state(salt);
                                    if (all) contents = whole;
                                    for (auto& [name, tensor] : contents.model) {
                                      if (name == "strided") tensor = whole.model.back().second;
                                    }
                                    return absl::OkStatus();
                                  },
                              .round_bytes = job.round_bytes,
                              .file_bytes = job.file_bytes};
      const auto r = static_cast<size_t>(rank);
      CheckpointContents part = part_of_rank(rank, salt);
      if (job.file_bytes == 0) part.files.clear();
      results[r] = trainkit::detail::save_together(saving, step, std::move(part), places, ready[r]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

struct JobOutcome {
  std::vector<absl::Status> saved;
  std::string struck;
  int calls = 0;
  std::string text() const {
    std::string all;
    for (const absl::Status& status : saved) all += status.ToString() + "\n";
    return all;
  }
};

JobOutcome save_jointly(FaultDisk& disk, int64_t step, int64_t salt, const Fault& fault = {}) {
  Fs fs(disk);
  Job job{.fs = &fs};
  auto store = CheckpointStore::open(kJointFolder, {.keep_last = 1, .fs = &fs});
  REQUIRE(store.status() == absl::OkStatus());
  disk.arm(fault);
  JobOutcome outcome;
  outcome.saved = save_all(job, *store, step, salt);
  outcome.struck = disk.struck();
  outcome.calls = disk.calls();
  return outcome;
}

std::unique_ptr<FaultDisk> disk_after(const std::vector<int64_t>& steps) {
  auto disk = std::make_unique<FaultDisk>();
  int64_t salt = 0;
  for (const int64_t step : steps) {
    const JobOutcome outcome = save_jointly(*disk, step, salt++);
    INFO(outcome.text());
    for (const absl::Status& status : outcome.saved) REQUIRE(status.ok());
  }
  disk->restart(PowerLoss::kAll);  // everything must have been on the disk
  return disk;
}

/// Salt of the latest checkpoint, after verification; -1 if there is none.
int64_t latest_joint_salt(FaultDisk& disk) {
  const Fs fs(disk);
  auto store = CheckpointStore::open(kJointFolder, {.fs = &fs});
  REQUIRE(store.status() == absl::OkStatus());
  const auto step = store->latest();
  if (absl::IsNotFound(step.status())) return -1;
  REQUIRE(step.status() == absl::OkStatus());
  const auto contents = store->load(*step);
  REQUIRE(contents.status() == absl::OkStatus());
  const int64_t salt = get_state<int64_t>(contents->state, "salt").value();
  const CheckpointContents expected = whole_state(salt);
  const auto check = [](const NamedTensors& loaded, const NamedTensors& whole) {
    REQUIRE(loaded.size() == whole.size());
    const std::map<std::string, at::Tensor> by_name(loaded.begin(), loaded.end());
    for (const auto& [name, tensor] : whole) REQUIRE(at::equal(by_name.at(name), tensor));
  };
  check(contents->model, expected.model);
  check(contents->optimizer, expected.optimizer);
  const std::string rows = fs.read_file(CheckpointPath{store->path(), *step}.path() + "/source-0001.rows", 100).value();
  REQUIRE(rows == std::string(reinterpret_cast<const char*>(&salt), sizeof(salt)));
  return salt;
}

bool has_unfinished(const FaultDisk& disk) {
  const auto paths = disk.paths();
  return std::any_of(paths.begin(), paths.end(),
                     [](const auto& path) { return path.find("/.tmp-") != std::string::npos; });
}

const std::vector<std::vector<int64_t>> kBefore = {{}, {10}, {10, 20}};  // then step 20 is saved

/// Calls `check(disk, outcome, salt)` for a fault at every call of a save.
template <class Check>
void for_each_joint_call(Fault fault, Check&& check) {
  for (const auto& before : kBefore) {
    const auto salt = static_cast<int64_t>(before.size());
    const int calls = save_jointly(*disk_after(before), 20, salt).calls;
    REQUIRE(calls > 60);
    for (fault.at = 0; fault.at < calls; ++fault.at) {
      const auto disk = disk_after(before);
      const JobOutcome outcome = save_jointly(*disk, 20, salt, fault);
      CAPTURE(before.size(), fault.kind, fault.at, fault.error, outcome.struck, outcome.text());
      check(*disk, outcome, salt);
    }
  }
}

/// Contents of all files by path.
std::map<std::string, std::string> files_of(FaultDisk& disk) {
  const Fs fs(disk);
  std::map<std::string, std::string> files;
  for (const std::string& path : disk.paths()) {
    if (const auto bytes = fs.read_file(path, 1 << 20); bytes.ok()) files[path] = *bytes;
  }
  return files;
}

}  // namespace

TEST_CASE("A checkpoint that ranks write together has the bytes of one that a single rank writes",
          "[faults][checkpoint][sharding]") {
  const auto disk = disk_after({10});
  FaultDisk alone;
  const Fs fs(alone);
  REQUIRE(CheckpointStore::open(kJointFolder, {.fs = &fs}).value().save(10, whole_state(0)).ok());
  const auto files = files_of(*disk);
  CHECK(files.size() == 6);
  CHECK(files == files_of(alone));
}

TEST_CASE("Ranks that exchange messages after every tensor write the same bytes", "[faults][checkpoint][sharding]") {
  FaultDisk disk;
  Fs fs(disk);
  Job job{.fs = &fs, .round_bytes = 1};
  auto store = CheckpointStore::open(kJointFolder, {.fs = &fs}).value();
  for (const absl::Status& status : save_all(job, store, 10, 0)) CHECK(status == absl::OkStatus());
  CHECK(job.meeting.rounds() > 5);
  CHECK(files_of(disk) == files_of(*disk_after({10})));
}

TEST_CASE("Ranks that die at any call of a save that they write together leave the previous checkpoint or the new one",
          "[faults][checkpoint][sharding]") {
  for (const auto kind : {Fault::kCrash, Fault::kCrashAfter}) {
    for (const auto loss : {PowerLoss::kNone, PowerLoss::kAll, PowerLoss::kRandom}) {
      for_each_joint_call({.kind = kind, .at = 0, .error = 0},
                          [&](FaultDisk& disk, const JobOutcome& outcome, int64_t salt) {
                            CAPTURE(loss);
                            disk.restart(loss, hash_key(7, outcome.calls, salt));
                            const int64_t found = latest_joint_salt(disk);
                            REQUIRE((found == salt || (found == salt - 1 && !outcome.saved[0].ok())));
                            REQUIRE_FALSE(has_unfinished(disk));
                          });
    }
  }
}

TEST_CASE("A save of several ranks that is interrupted or cut short at any call succeeds",
          "[faults][checkpoint][sharding]") {
  for (const Fault& fault :
       {Fault{.kind = Fault::kError, .at = 0, .error = EINTR}, Fault{.kind = Fault::kShort, .at = 0, .error = 0}}) {
    for_each_joint_call(fault, [&](FaultDisk& disk, const JobOutcome& outcome, int64_t salt) {
      for (const absl::Status& status : outcome.saved) REQUIRE(status == absl::OkStatus());
      disk.restart(PowerLoss::kAll);
      REQUIRE(latest_joint_salt(disk) == salt);
    });
  }
}

TEST_CASE("A disk error of any rank at any call of a save fails it with exit code 6, and the next save succeeds",
          "[faults][checkpoint][sharding]") {
  for (const auto kind : {Fault::kError, Fault::kErrorOn}) {
    for (const int error : {EIO, ENOSPC}) {
      for_each_joint_call({.kind = kind, .at = 0, .error = error},
                          [&](FaultDisk& disk, const JobOutcome& outcome, int64_t salt) {
                            disk.arm({});
                            int64_t own = 0, others = 0;
                            for (const absl::Status& status : outcome.saved) {
                              if (status.ok()) continue;
                              const bool is_own = exit_code(status) == ExitCode::kStorage;
                              (is_own ? own : others) += 1;
                              if (!is_own)
                                CHECK_THAT(error_line(status), Catch::Contains("could not save the checkpoint"));
                            }
                            REQUIRE((others == 0 || own > 0));
                            const int64_t found = latest_joint_salt(disk);
                            REQUIRE((found == salt || (found == salt - 1 && !outcome.saved[0].ok())));
                            const JobOutcome next = save_jointly(disk, 30, salt + 100);
                            for (const absl::Status& status : next.saved) REQUIRE(status.ok());
                            REQUIRE(latest_joint_salt(disk) == salt + 100);
                          });
    }
  }
}

TEST_CASE("A rank lost at any exchange of a save fails the save of the others, which leaves no part of it",
          "[faults][checkpoint][sharding]") {
  const auto fresh = disk_after({10});
  Fs fresh_fs(*fresh);
  Job whole{.fs = &fresh_fs};
  auto fresh_store = CheckpointStore::open(kJointFolder, {.fs = &fresh_fs}).value();
  REQUIRE(save_all(whole, fresh_store, 20, 1)[0].ok());
  REQUIRE(whole.meeting.rounds() == 3);
  for (int64_t rank = 1; rank < kRanks; ++rank) {
    for (int64_t at = 0; at < whole.meeting.rounds(); ++at) {
      CAPTURE(rank, at);
      const auto disk = disk_after({10});
      Fs fs(*disk);
      Job job{.fs = &fs};
      job.meeting.leaver = rank;
      job.meeting.leaves_at = at;
      {
        auto store = CheckpointStore::open(kJointFolder, {.fs = &fs}).value();
        for (const absl::Status& status : save_all(job, store, 20, 1)) CHECK(absl::IsUnavailable(status));
        CHECK_FALSE(has_unfinished(*disk));
        CHECK(store.latest().value() == 10);
      }
      CHECK(latest_joint_salt(*disk) == 0);
    }
  }
}

TEST_CASE("A rank that is not ready fails the save of all before anything is written",
          "[faults][checkpoint][sharding]") {
  for (size_t rank = 0; rank < kRanks; ++rank) {
    const auto disk = disk_after({10});
    const auto before = disk->paths();
    Fs fs(*disk);
    Job job{.fs = &fs};
    auto store = CheckpointStore::open(kJointFolder, {.fs = &fs}).value();
    std::vector<absl::Status> ready(kRanks);
    ready[rank] = to_status({.exit_code = ExitCode::kStorage, .id = "storage.full", .problem = "the log is full"});
    const auto results = save_all(job, store, 20, 1, ready);
    for (size_t r = 0; r < kRanks; ++r) {
      CHECK(exit_code(results[r]) == (r == rank ? ExitCode::kStorage : ExitCode::kDistributed));
      CHECK_THAT(error_line(results[r]), Catch::Contains("the log is full"));
      if (r != rank) {
        CHECK_THAT(error_line(results[r]),
                   Catch::Contains("rank " + std::to_string(rank) + " could not save the checkpoint of step 20"));
      }
    }
    CHECK(disk->paths() == before);
  }
}

TEST_CASE("Ranks that do not see the first rank's disk send it their parts", "[faults][checkpoint][sharding]") {
  const auto disk = disk_after({10});
  FaultDisk other;
  Fs fs(*disk), other_fs(other);
  REQUIRE(CheckpointStore::open(kJointFolder, {.fs = &other_fs}).ok());  // the same path on another machine
  const auto there = other.paths();
  Job job{.fs = &fs};
  job.views[2] = &other_fs;
  {
    auto store = CheckpointStore::open(kJointFolder, {.keep_last = 1, .fs = &fs}).value();
    // A file of a rank cannot be sent.
    for (const absl::Status& status : save_all(job, store, 20, 1)) {
      CHECK(exit_code(status) == ExitCode::kDistributed);
      CHECK_THAT(error_line(status), Catch::Contains("no common file system"));
    }
    CHECK(job.gathers == 0);
    CHECK(store.latest().value() == 10);
    job.file_bytes = 0;
    for (const absl::Status& status : save_all(job, store, 20, 1)) CHECK(status == absl::OkStatus());
    CHECK(job.gathers == 1);
    CHECK_FALSE(has_unfinished(*disk));
  }
  CHECK(latest_joint_salt(*disk) == 1);
  CHECK(other.paths() == there);
}

TEST_CASE("A part that does not arrive in the file is an error that names the rank", "[faults][checkpoint][sharding]") {
  const auto disk = disk_after({10});
  ForgetfulDisk forgetful(*disk);
  Fs fs(*disk), forgetful_fs(forgetful);
  Job job{.fs = &fs};
  job.views[1] = &forgetful_fs;
  {
    auto store = CheckpointStore::open(kJointFolder, {.fs = &fs}).value();
    const auto results = save_all(job, store, 20, 1);
    CHECK(exit_code(results[0]) == ExitCode::kStorage);
    CHECK_THAT(error_line(results[0]), Catch::Contains("does not have the bytes that rank 1 has written"));
    CHECK_FALSE(has_unfinished(*disk));
  }
  CHECK(latest_joint_salt(*disk) == 0);
}
