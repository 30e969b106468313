#include "text/in_order.h"

#include <chrono>
#include <functional>
#include <stdexcept>
#include <thread>

#include "test_util.h"

using trainkit::detail::run_in_order;

namespace {

struct Item {
  int64_t number = 0, square = 0;
};

/// Squares 0 to count - 1 with four threads, of which the first items take longest.
absl::Status square(int64_t count, std::vector<int64_t>& passed,
                    const std::function<absl::Status(const Item&)>& pass_on) {
  int64_t next = 0;
  return run_in_order<Item>(
      4, 8,
      [&](Item& item) {
        item.number = next;
        return next++ < count;
      },
      [&](Item& item, int64_t thread) {
        if (thread < 0 || thread >= 4) throw std::logic_error("no such thread");
        std::this_thread::sleep_for(std::chrono::microseconds(item.number % 5 == 0 ? 300 : 0));
        item.square = item.number * item.number;
      },
      [&](const Item& item) {
        passed.push_back(item.square);
        return pass_on(item);
      });
}

}  // namespace

TEST_CASE("Results of threads are passed on in the order of the items, on the calling thread", "[text][in_order]") {
  const auto caller = std::this_thread::get_id();
  for (const int64_t count : {0, 1, 7, 8, 9, 500}) {
    std::vector<int64_t> passed;
    bool by_caller = true;
    CHECK(square(count, passed, [&](const Item&) {
            by_caller = by_caller && std::this_thread::get_id() == caller;
            return absl::OkStatus();
          }).ok());
    CHECK(by_caller);
    REQUIRE(std::ssize(passed) == count);
    for (int64_t i = 0; i < count; ++i) CHECK(passed[static_cast<size_t>(i)] == i * i);
  }
}

TEST_CASE("The first error ends the work", "[text][in_order]") {
  std::vector<int64_t> passed;
  const absl::Status status = square(500, passed, [](const Item& item) {
    return item.number < 20 ? absl::OkStatus() : absl::CancelledError("at " + std::to_string(item.number));
  });
  CHECK(status == absl::CancelledError("at 20"));
  CHECK(passed.size() == 21);
}

TEST_CASE("An exception of any part of the work reaches the caller", "[text][in_order]") {
  const int64_t where = GENERATE(0, 1, 2);
  const auto fail_in = [&](int64_t part) {
    if (part == where) throw std::runtime_error("part " + std::to_string(part));
  };
  int64_t next = 0;
  const auto run = [&] {
    (void)run_in_order<Item>(
        4, 8,
        [&](Item& item) {
          if (next == 30) fail_in(0);
          item.number = next++;
          return next < 100;
        },
        [&](Item& item, int64_t) {
          if (item.number == 30) fail_in(1);
        },
        [&](const Item& item) {
          if (item.number == 30) fail_in(2);
          return absl::OkStatus();
        });
  };
  CHECK_THROWS_WITH(run(), "part " + std::to_string(where));
}
