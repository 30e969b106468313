#include "trainkit/logging/logger.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "test_util.h"

using namespace trainkit;
using namespace std::chrono_literals;

namespace {

/// The calls of a sink, in order.
struct Trace {
  std::mutex mutex;
  std::vector<std::string> calls;
  void add(std::string call) {
    std::lock_guard lock(mutex);
    calls.push_back(std::move(call));
  }
  std::vector<std::string> take() {
    std::lock_guard lock(mutex);
    return std::exchange(calls, {});
  }
};

class TraceLogger : public Logger {
 public:
  explicit TraceLogger(std::shared_ptr<Trace> trace, absl::Status status = absl::OkStatus(), bool optional = false)
      : trace_(std::move(trace)), status_(std::move(status)), optional_(optional) {}
  void log(const LogRecord& record) override {
    trace_->add(record.split + std::to_string(record.step));
    if (gate) gate();
  }
  void log_text(const LogText& text) override { trace_->add(text.tag + "=" + text.text); }
  void print(std::string_view line) override { trace_->add("line " + std::string(line)); }
  void tick(int64_t step) override { trace_->add("tick" + std::to_string(step)); }
  absl::Status flush() override { return trace_->add("flush"), status_; }
  absl::Status rewind(int64_t step) override { return trace_->add("rewind" + std::to_string(step)), status_; }
  absl::Status close() override { return trace_->add("close"), status_; }
  bool optional() const override { return optional_; }
  std::function<void()> gate;

 private:
  std::shared_ptr<Trace> trace_;
  absl::Status status_;
  bool optional_;
};

/// A gate that stays closed until it is opened, and knows whether a thread waits at it.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void wait_for_someone() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_ > 0; });
  }
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int waiting_ = 0;
};

using Calls = std::vector<std::string>;
const absl::Status kDiskFull = to_status({.exit_code = ExitCode::kStorage, .id = "log.write", .problem = "disk full"});

}  // namespace

TEST_CASE("Every sink gets every record, text and line in the order of the calls", "[logging][logger]") {
  auto a = std::make_shared<Trace>(), b = std::make_shared<Trace>();
  RunLogger logger;
  logger.add(std::make_unique<TraceLogger>(a));
  logger.add(std::make_unique<TraceLogger>(b));
  CHECK(logger.rewind(7).ok());
  logger.log({.step = 8});
  logger.log({.step = 8, .split = "val"});
  logger.log_text({.step = 8, .tag = "sample", .text = "to be"});
  logger.print("saved");
  logger.log({.step = 9});
  CHECK(logger.flush().ok());
  const Calls expected = {"rewind7", "train8", "val8", "sample=to be", "line saved", "train9", "flush"};
  CHECK(a->take() == expected);
  CHECK(b->take() == expected);
  CHECK(logger.close().ok());
  CHECK(a->take() == Calls{"close"});
}

TEST_CASE("A sink that is added later does not get earlier records", "[logging][logger]") {
  auto a = std::make_shared<Trace>(), b = std::make_shared<Trace>();
  RunLogger logger;
  logger.add(std::make_unique<TraceLogger>(a));
  logger.log({.step = 1});
  logger.add(std::make_unique<TraceLogger>(b));
  logger.log({.step = 2});
  CHECK(logger.flush().ok());
  CHECK(a->take() == Calls{"train1", "train2", "flush"});
  CHECK(b->take() == Calls{"train2", "flush"});
}

TEST_CASE("The destructor writes the queue", "[logging][logger]") {
  auto trace = std::make_shared<Trace>();
  {
    RunLogger logger({.drain_every = 1h});
    logger.add(std::make_unique<TraceLogger>(trace));
    for (int step = 0; step < 100; ++step) logger.log({.step = step});
  }
  const Calls calls = trace->take();
  REQUIRE(calls.size() == 101);
  CHECK(calls.front() == "train0");
  CHECK(calls[99] == "train99");
  CHECK(calls.back() == "close");
}

TEST_CASE("A stalled sink blocks nothing: training records are dropped, counted and reported in one warning",
          "[logging][logger]") {
  auto slow = std::make_shared<Trace>(), other = std::make_shared<Trace>();
  Gate gate;
  RunLogger logger({.queue_capacity = 8, .drain_every = 1ms});
  auto sink = std::make_unique<TraceLogger>(slow);
  sink->gate = [&] { gate.pass(); };
  logger.add(std::move(sink));
  logger.add(std::make_unique<TraceLogger>(other));
  logger.log({.step = 0});
  gate.wait_for_someone();  // the writer now waits inside the sink
  for (int step = 1; step <= 100; ++step) logger.log({.step = step});
  CHECK(logger.dropped() == 92);
  logger.log({.step = 100, .split = "val"});  // never dropped
  logger.print("still here");
  gate.open();
  CHECK(logger.flush().ok());
  const Calls calls = other->take();
  CHECK(std::count(calls.begin(), calls.end(), "val100") == 1);
  CHECK(std::count(calls.begin(), calls.end(), "line still here") == 1);
  CHECK(std::count(calls.begin(), calls.end(), "train8") == 1);
  CHECK(std::count(calls.begin(), calls.end(), "train9") == 0);
  CHECK(std::count_if(calls.begin(), calls.end(), [](const std::string& call) {
          return call.starts_with("line warning: error[log.slow]") && call.find("92 records lost") != std::string::npos;
        }) == 1);
  CHECK(logger.close().ok());
}

TEST_CASE("With WhenFull::kWait no record is lost, however small the queue is", "[logging][logger]") {
  auto trace = std::make_shared<Trace>();
  RunLogger logger({.queue_capacity = 2, .when_full = WhenFull::kWait});
  logger.add(std::make_unique<TraceLogger>(trace));
  for (int step = 0; step < 2000; ++step) logger.log({.step = step});
  CHECK(logger.flush().ok());
  const Calls calls = trace->take();
  REQUIRE(calls.size() == 2001);
  for (int step = 0; step < 2000; ++step) REQUIRE(calls[step] == "train" + std::to_string(step));
  CHECK(logger.dropped() == 0);
}

TEST_CASE("A failed sink gives one warning, one error of flush, and the error of close", "[logging][logger]") {
  auto bad = std::make_shared<Trace>(), good = std::make_shared<Trace>();
  RunLogger logger;
  logger.add(std::make_unique<TraceLogger>(bad, kDiskFull));
  logger.add(std::make_unique<TraceLogger>(good));
  logger.log({.step = 1});
  CHECK(exit_code(logger.flush()) == ExitCode::kStorage);
  logger.log({.step = 2});
  CHECK(logger.flush().ok());
  CHECK(good->take() == Calls{"train1", "line warning: error[log.write] disk full", "flush", "train2", "flush"});
  CHECK(error_line(logger.close()) == "error[log.write] disk full");
}

TEST_CASE("A failed optional sink gives a warning, not an error", "[logging][logger]") {
  auto bad = std::make_shared<Trace>(), good = std::make_shared<Trace>();
  RunLogger logger;
  logger.add(std::make_unique<TraceLogger>(bad, kDiskFull, /*optional=*/true));
  logger.add(std::make_unique<TraceLogger>(good));
  CHECK(logger.flush().ok());
  CHECK(good->take() == Calls{"line warning: error[log.write] disk full", "flush"});
  CHECK(logger.close().ok());
}

TEST_CASE("A sink that throws counts as failed", "[logging][logger]") {
  auto bad = std::make_shared<Trace>(), good = std::make_shared<Trace>();
  RunLogger logger;
  auto sink = std::make_unique<TraceLogger>(bad);
  sink->gate = [] { throw std::runtime_error("no more"); };
  logger.add(std::move(sink));
  logger.add(std::make_unique<TraceLogger>(good));
  logger.log({.step = 1});
  CHECK(logger.flush().message() == "no more");
  CHECK(good->take() == Calls{"line warning: error[bug.internal] no more", "train1", "flush"});
}

TEST_CASE("The latest step reaches the sinks between records", "[logging][logger]") {
  auto trace = std::make_shared<Trace>();
  RunLogger logger({.drain_every = 1ms});
  logger.add(std::make_unique<TraceLogger>(trace));
  logger.tick(41);
  logger.tick(42);
  Calls calls;
  for (const auto deadline = std::chrono::steady_clock::now() + 60s;
       std::find(calls.begin(), calls.end(), "tick42") == calls.end() && std::chrono::steady_clock::now() < deadline;) {
    for (std::string& call : trace->take()) calls.push_back(std::move(call));
  }
  CHECK(std::count(calls.begin(), calls.end(), "tick42") == 1);
}

TEST_CASE("A failure is also reported between checkpoints", "[logging][logger]") {
  auto bad = std::make_shared<Trace>(), good = std::make_shared<Trace>();
  RunLogger logger({.drain_every = 1ms, .flush_every = 1ms});
  logger.add(std::make_unique<TraceLogger>(bad, kDiskFull));
  logger.add(std::make_unique<TraceLogger>(good));
  Calls calls;
  const std::string warning = "line warning: error[log.write] disk full";
  for (const auto deadline = std::chrono::steady_clock::now() + 60s;
       std::find(calls.begin(), calls.end(), warning) == calls.end() && std::chrono::steady_clock::now() < deadline;) {
    for (std::string& call : good->take()) calls.push_back(std::move(call));
  }
  CHECK(std::count(calls.begin(), calls.end(), warning) == 1);
  CHECK(exit_code(logger.flush()) == ExitCode::kStorage);
}

TEST_CASE("Records after close are ignored", "[logging][logger]") {
  auto trace = std::make_shared<Trace>();
  RunLogger logger;
  logger.add(std::make_unique<TraceLogger>(trace));
  CHECK(logger.close().ok());
  logger.log({.step = 1});
  CHECK(logger.flush().ok());
  CHECK(logger.close().ok());
  CHECK(trace->take() == Calls{"close"});
}

TEST_CASE("Many threads may log, flush and tick concurrently", "[logging][logger]") {
  auto trace = std::make_shared<Trace>();
  RunLogger logger({.queue_capacity = 16, .when_full = WhenFull::kWait, .drain_every = 1ms});
  logger.add(std::make_unique<TraceLogger>(trace));
  std::atomic<int> flushed = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        logger.log({.step = t * 1000 + i, .values = {{"loss", 1.0 / (i + 1)}}, .lr = {1e-3}});
        logger.tick(i);
        if (i % 100 == 0) flushed += logger.flush().ok() ? 1 : 0;  // Catch is not thread-safe
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(flushed == 20);
  CHECK(logger.close().ok());
  const Calls calls = trace->take();
  CHECK(std::count_if(calls.begin(), calls.end(), [](const std::string& call) { return call.starts_with("train"); }) ==
        2000);
}

TEST_CASE("A queue for fewer than two records is refused", "[logging][logger]") {
  CHECK_THROWS_AS(RunLogger({.queue_capacity = 1}), c10::ValueError);
  CHECK_THROWS_AS(RunLogger({.drain_every = 0ms}), c10::ValueError);
  CHECK_THROWS_AS(RunLogger({.flush_every = 0ms}), c10::ValueError);
}
