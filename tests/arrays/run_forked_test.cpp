// Work in a forked process, which cannot end this one.
#include "arrays/hdf5/run_forked.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

using trainkit::detail::run_forked;

TEST_CASE("The result of the work is returned whole", "[io][run_forked]") {
  const std::string large(10'000'000, 'x');
  CHECK(run_forked([&] { return large + "end"; }).value() == large + "end");
  CHECK(run_forked([] { return std::string(); }).value().empty());
  int own = 1;
  CHECK(run_forked([&] {
          own = 2;
          return std::string("done");
        }).value() == "done");
  CHECK(own == 1);
}

TEST_CASE("Work that does not finish is an error with the cause", "[io][run_forked]") {
  const auto problem = [](const std::function<std::string()>& work) {
    const auto told = run_forked(work);
    REQUIRE(told.status().code() == absl::StatusCode::kDataLoss);
    return std::string(told.status().message());
  };
  CHECK(problem([]() -> std::string {
          ::kill(::getpid(), SIGKILL), ::pause();
          return "";
        }) == "its reader was ended by Killed");
  CHECK(problem([]() -> std::string {
          std::signal(SIGSEGV, SIG_DFL), std::raise(SIGSEGV);
          return "";
        }) == "its reader was ended by Segmentation fault");
  CHECK(problem([]() -> std::string { ::_exit(0); }) == "its reader failed");
  CHECK(problem([]() -> std::string { throw std::runtime_error("torn"); }) == "its reader failed");
  CHECK(problem([]() -> std::string {
          const rlimit one{1, 1};
          ::setrlimit(RLIMIT_CPU, &one);
          for (std::atomic<int> k{0};; ++k) {
          }
        }) == "its reader was ended by Killed");
}

TEST_CASE("Several threads may fork concurrently, and no process is left behind", "[io][run_forked]") {
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int k = 0; k < 20; ++k) {
        const std::string text(static_cast<size_t>(1000 * k + thread), 'a');
        good += run_forked([&] { return text; }).value() == text;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(good == 80);
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);  // no child is left
}
