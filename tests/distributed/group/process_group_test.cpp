#include <signal.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "distributed/agreement/step_consensus.h"
#include "distributed/group/failure_detector.h"
#include "distributed/group/rendezvous.h"
#include "distributed/rank_threads.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("Ranks sum, take the maximum, broadcast and wait for each other", "[distributed][process_group]") {
  for (const int64_t count : {1, 2, 3}) {
    const auto texts = on_ranks(count, [&](ProcessGroup& group) -> absl::Status {
      std::string wrong;  // Catch is not thread-safe
      const auto expect = [&](bool holds, const char* what) { wrong += holds ? "" : std::string(" ") + what; };
      expect(group.world_size() == count, "world_size");
      const at::Tensor sum = torch::full({5}, static_cast<double>(group.rank() + 1)), largest = sum.clone();
      if (auto status = group.all_reduce(sum); !status.ok()) return status;
      expect(sum.equal(torch::full({5}, static_cast<double>(count * (count + 1) / 2))), "sum");
      if (auto status = group.all_reduce_max(largest); !status.ok()) return status;
      expect(largest.equal(torch::full({5}, static_cast<double>(count))), "largest");
      const std::vector<at::Tensor> tensors{torch::full({3}, group.rank()), torch::full({2}, group.rank() * 2.5)};
      if (auto status = group.broadcast(tensors, count - 1); !status.ok()) return status;
      expect(tensors[0].equal(torch::full({3}, count - 1)), "broadcast");
      expect(tensors[1].equal(torch::full({2}, static_cast<double>(count - 1) * 2.5)), "broadcast");
      expect(group.broadcast_text("text of " + std::to_string(group.rank())).value() == "text of 0", "text");
      if (auto status = group.barrier(); !status.ok()) return status;
      return wrong.empty() ? absl::OkStatus() : absl::InternalError(wrong);
    });
    for (const std::string& text : texts) CHECK(text == "ok");
  }
}

TEST_CASE("A digest that differs gives the same error on every rank, with field, values and ranks",
          "[distributed][process_group]") {
  const auto texts = on_ranks(3, [](ProcessGroup& group) -> absl::Status {
    auto status = group.compare_digest({{"library", "0.1"}, {"rows", "100"}});
    if (!status.ok()) return status;
    std::vector<DigestField> fields{{"library", "0.1"}, {"rows", group.rank() == 2 ? "99" : "100"}};
    if (group.rank() == 1) fields.push_back({"extra", "1"});
    return group.compare_digest(fields);
  });
  for (const std::string& text : texts) {
    CHECK(text == "error[dist.digest] rows: differs between ranks (got '99 on rank 2', expected '100' as on rank 0)");
  }
  const auto missing = on_ranks(2, [](ProcessGroup& group) {
    return group.compare_digest(group.rank() == 1 ? std::vector<DigestField>{{"seed", "1"}}
                                                  : std::vector<DigestField>());
  });
  for (const std::string& text : missing)
    CHECK_THAT(text, Catch::Contains("seed: differs between ranks (got '1 on rank 1'"));
}

TEST_CASE("Votes of all ranks reach all, and a rank at another step is an error", "[distributed][agreement]") {
  const auto texts = on_ranks(3, [](ProcessGroup& group) -> absl::Status {
    StepConsensus agree(group);
    const int64_t rank = group.rank();
    const StepVerdict quiet = agree(1, {.weight = 2.5}).value();
    bool right = quiet.ok() && quiet.stop == 0 && !quiet.save && quiet.weight == 7.5;
    const StepVerdict all = agree(2, {.stop = rank == 1 ? 15 : 0, .save = rank == 2, .weight = 1}).value();
    right = right && all.ok() && all.stop == 15 && all.save;
    const StepVerdict failed =
        agree(3, {.out_of_memory = rank == 2, .failed = rank == 1, .reason = "reason " + std::to_string(rank)}).value();
    right = right && failed.failed == std::vector<int64_t>{1, 2} && failed.out_of_memory == std::vector<int64_t>{2} &&
            failed.reason == "reason 1";
    if (!right) return absl::InternalError("a verdict is wrong");
    return agree(rank == 1 ? 5 : 4, {}).status();
  });
  for (const std::string& text : texts)
    CHECK_THAT(text, Catch::StartsWith("error[dist.order] step: ranks are not at the same"));
}

TEST_CASE("A rank that leaves tells the waiting ranks its reason", "[distributed][process_group]") {
  const int64_t leaver = GENERATE(2, 0);  // the store ends with rank 0
  std::atomic<int> connected{0};
  const auto texts = on_ranks(3, [&](ProcessGroup& group) -> absl::Status {
    ++connected;
    if (group.rank() == leaver) {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (connected < 3 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      group.leave("the disk is full");
      return group.usable() ? absl::InternalError("it is usable still") : absl::OkStatus();
    }
    group.set_step(7);
    return group.all_reduce(torch::ones({4}), "allreduce(test)");
  });
  for (int64_t rank = 0; rank < 3; ++rank) {
    const std::string& text = texts[static_cast<size_t>(rank)];
    if (rank == leaver) {
      CHECK(text == "ok");
    } else {
      CHECK_THAT(text, Catch::StartsWith("error[dist.peer] rank " + std::to_string(leaver) +
                                         " left: the disk is full at step 7 in allreduce(test) after "));
    }
  }
}

TEST_CASE("A rank has the verdict before it counts as a reader of it", "[distributed][process_group]") {
  // The host of the store ends it as soon as all ranks count.
  struct CountedStore : c10d::HashStore {
    std::promise<bool> had_verdict;
    const trainkit::detail::FailureDetector* detector = nullptr;
    int64_t add(const std::string& key, int64_t value) override {
      if (key == "verdict_seen" && value == 1) had_verdict.set_value(detector->has_verdict());
      return HashStore::add(key, value);
    }
  };
  const auto store = c10::make_intrusive<CountedStore>();
  trainkit::detail::FailureDetector detector(store, 1, 2);
  store->detector = &detector;
  c10d::Store& of_all = *store;
  of_all.set("verdict", std::string("rank 0 left: the disk is full"));
  of_all.set("call/1", std::string("answer"));
  auto had_verdict = store->had_verdict.get_future();
  REQUIRE(had_verdict.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  CHECK(had_verdict.get());
}

TEST_CASE("A rank that meets the others only to leave tells those that still connect its reason",
          "[distributed][process_group]") {
  const int port = free_port();
  constexpr std::chrono::milliseconds kTimeout{1000};
  std::promise<void> reported;
  std::thread leaver([&, ended = reported.get_future()] {
    const LaunchEnvironment launch = launch_of(1, 2, port);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    auto store = trainkit::detail::open_store(launch, ProcessGroupOptions().bind, deadline, kTimeout);
    if (!store.ok() || !trainkit::detail::join(**store, launch, deadline, kTimeout).ok()) return;
    trainkit::detail::FailureDetector(*std::move(store), 1, 2).leave("the disk is full");
    ended.wait();
  });
  const auto group = ProcessGroup::create(launch_of(0, 2, port), {.timeout = kTimeout});
  reported.set_value();
  leaver.join();
  REQUIRE(!group.ok());
  CHECK(exit_code(group.status()) == ExitCode::kDistributed);
  CHECK_THAT(text_of(group.status()),
             Catch::StartsWith("error[dist.peer] rank 1 left: the disk is full at step 0 in connecting after "));
}

TEST_CASE("Missing ranks are reported at the timeout", "[distributed][process_group]") {
  const auto started = std::chrono::steady_clock::now();
  const auto group = ProcessGroup::create(launch_of(0, 3, free_port()), {.timeout = std::chrono::milliseconds(700)});
  REQUIRE(!group.ok());
  CHECK(exit_code(group.status()) == ExitCode::kDistributed);
  CHECK(text_of(group.status()) == "error[dist.join] rank 1, 2 did not join within 0.7 s");
  CHECK(std::chrono::steady_clock::now() - started < std::chrono::seconds(20));
  const auto nobody = ProcessGroup::create(launch_of(1, 2, free_port()), {.timeout = std::chrono::milliseconds(300)});
  CHECK_THAT(text_of(nobody.status()), Catch::Contains("rank 1 found no listener at 127.0.0.1:"));
}

TEST_CASE("Invalid addresses, ports and ranks are errors before any rank waits", "[distributed][process_group]") {
  const int port = free_port();
  const auto first = ProcessGroup::create(launch_of(0, 1, port));
  REQUIRE(first.ok());
  const auto taken = ProcessGroup::create(launch_of(0, 1, port));
  CHECK_THAT(text_of(taken.status()), Catch::Contains("error[dist.env] MASTER_PORT: cannot listen on 127.0.0.1:"));
  CHECK(exit_code(taken.status()) == ExitCode::kDistributed);
  const auto nowhere = ProcessGroup::create(launch_of(0, 1, free_port()), {.bind = "no-such-interface"});
  CHECK_THAT(text_of(nowhere.status()), Catch::Contains("--dist_bind: is not an address, host or network interface"));
  LaunchEnvironment two_machines = launch_of(0, 4, free_port());
  two_machines.local_world_size = 2;
  CHECK_THAT(text_of(ProcessGroup::create(two_machines).status()),
             Catch::Contains("--dist_bind: the loopback address is not reachable from other machines"));
  two_machines.master_addr = "no-such-host.invalid";
  CHECK_THAT(text_of(ProcessGroup::create(two_machines).status()),
             Catch::Contains("MASTER_ADDR: does not resolve (got 'no-such-host.invalid'"));
  CHECK(!ProcessGroup::create(launch_of(2, 2, free_port())).ok());
}

TEST_CASE("A duplicate rank is reported as such", "[distributed][process_group]") {
  const int port = free_port();
  std::vector<std::string> texts(3);
  std::vector<std::shared_ptr<ProcessGroup>> groups(3);  // no rank leaves before all are answered
  std::vector<std::thread> threads;
  for (const int64_t rank : {0, 1, 1}) {
    threads.emplace_back([&, rank, i = threads.size()] {
      auto group = ProcessGroup::create(launch_of(rank, 2, port), {.timeout = std::chrono::seconds(20)});
      texts[i] = text_of(group.status());
      if (group.ok()) groups[i] = *std::move(group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(texts[0] == "ok");
  CHECK((texts[1] == "ok") != (texts[2] == "ok"));
  CHECK_THAT(texts[1] + texts[2], Catch::Contains("error[dist.env] RANK: another process already has this rank"));
}

TEST_CASE("A peer that disconnects does not end the host of the store by SIGPIPE", "[distributed][process_group]") {
  const auto threads = [] {
    std::set<std::string> ids;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) ids.insert(task.path().string());
    return ids;
  };
  const std::set<std::string> before = threads();
  const auto group = ProcessGroup::create(launch_of(0, 1, free_port()));
  REQUIRE(group.ok());
  int begun = 0;
  for (const std::string& task : threads()) {
    if (before.contains(task)) continue;
    ++begun;
    std::ifstream status(task + "/status");
    std::string word, blocked;
    while (status >> word && word != "SigBlk:") continue;
    status >> blocked;
    INFO(task);
    CHECK((std::stoull(blocked, nullptr, 16) >> (SIGPIPE - 1) & 1) == 1);
  }
  CHECK(begun > 0);
  sigset_t own;
  pthread_sigmask(SIG_SETMASK, nullptr, &own);
  CHECK(!sigismember(&own, SIGPIPE));
}
