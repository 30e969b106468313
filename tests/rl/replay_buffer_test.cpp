#include "trainkit/rl/replay_buffer.h"

#include <algorithm>
#include <set>
#include <thread>

#include "rl/replay_rows.h"
#include "trainkit/core/error.h"

using namespace trainkit;
using namespace trainkit::test;
using Catch::Contains;

namespace {

std::unique_ptr<ReplayBuffer> make(const ReplayBufferOptions& options) {
  return ReplayBuffer::create(replay_fields(), options).value();
}

Batch next(ReplayBuffer& buffer) { return *buffer.next().value(); }

/// A batch with the keys [begin, end).
Batch batch_of(int64_t begin, int64_t end) {
  const at::Tensor keys = torch::arange(begin, end);
  const at::Tensor numbers = torch::empty({end - begin, 5}, torch::kLong);
  for (int64_t row = 0; row < end - begin; ++row) {
    for (int64_t i = 0; i < 5; ++i) numbers[row][i] = number_of(begin + row, i);
  }
  return Batch(std::make_shared<const std::vector<FieldSpec>>(replay_fields()),
               {keys, numbers, keys.to(torch::kFloat)});
}

}  // namespace

TEST_CASE("Batch k is drawn from the newest rows of exactly the first n(k)", "[rl][replay]") {
  // n(k) = 4 + floor(k * 6 / 4): 4, 5, 7, 8, 10, ...
  const auto buffer = make({.capacity = 6, .batch_size = 6, .min_size = 4, .samples_per_insert = 4, .ahead = 100});
  REQUIRE(append_keys(*buffer, 0, 3).ok());
  CHECK_FALSE(buffer->can_sample());
  REQUIRE(append_keys(*buffer, 3, 50).ok());  // far ahead
  CHECK(buffer->size() == 6);
  std::set<int64_t> oldest, newest;
  for (int64_t k = 0; k < 30; ++k) {
    const int64_t high = 4 + k * 6 / 4, low = std::max<int64_t>(0, high - 6);
    const Batch batch = next(*buffer);
    CHECK(batch.size() == 6);
    CHECK(torn_rows(batch) == 0);
    const std::vector<int64_t> keys = keys_of(batch);
    CHECK(std::vector<int64_t>(batch.row_indices().begin(), batch.row_indices().end()) == keys);
    for (const int64_t key : keys) CHECK((low <= key && key < high));
    for (const int64_t key : keys) oldest.insert(key - low), newest.insert(high - 1 - key);
  }
  CHECK(oldest.count(0) == 1);  // both ends of the window are drawn
  CHECK(newest.count(0) == 1);
}

TEST_CASE("A batch does not depend on how far appenders are ahead, nor on how rows arrive", "[rl][replay]") {
  const ReplayBufferOptions options = {
      .capacity = 10, .batch_size = 5, .min_size = 3, .samples_per_insert = 5, .ahead = 40, .seed = 9};
  const auto step_by_step = make(options), at_once = make(options);
  REQUIRE(at_once->append(batch_of(0, 33)).ok());
  int64_t appended = 0;
  for (int64_t k = 0; k < 30; ++k) {
    for (; !step_by_step->can_sample(); ++appended) REQUIRE(append_keys(*step_by_step, appended, appended + 1).ok());
    CHECK(appended == 3 + k);
    CHECK(keys_of(next(*step_by_step)) == keys_of(next(*at_once)));
  }
  ReplayBufferOptions other = options;
  other.seed = 10;
  const auto differs = make(other);
  REQUIRE(differs->append(batch_of(0, 33)).ok());
  for (int64_t k = 0; k < 29; ++k) static_cast<void>(next(*differs));
  const auto again = make(options);
  REQUIRE(again->append(batch_of(0, 33)).ok());
  for (int64_t k = 0; k < 29; ++k) static_cast<void>(next(*again));
  CHECK(keys_of(next(*differs)) != keys_of(next(*again)));
}

TEST_CASE("Rows are drawn uniformly", "[rl][replay]") {
  const auto buffer = make({.capacity = 16, .batch_size = 64, .min_size = 16, .seed = 2});
  REQUIRE(append_keys(*buffer, 0, 16).ok());
  std::vector<double> counts(16);
  for (int64_t k = 0; k < 100; ++k) {
    for (const int64_t key : keys_of(next(*buffer))) ++counts[static_cast<size_t>(key)];
  }
  double chi_square = 0;
  for (const double count : counts) chi_square += (count - 400) * (count - 400) / 400;
  CHECK(chi_square < 37.7);  // 15 degrees of freedom, p = 0.001; the seed is fixed
}

TEST_CASE("Waits end at the timeout with both counters, or with the reason of stop()", "[rl][replay]") {
  const auto buffer = make({.capacity = 4,
                            .batch_size = 2,
                            .min_size = 2,
                            .samples_per_insert = 2,
                            .ahead = 2,
                            .timeout = std::chrono::milliseconds(20)});
  const absl::Status empty = buffer->next().status();
  CHECK(exit_code(empty) == ExitCode::kStalledWorker);
  CHECK(absl::IsDeadlineExceeded(empty));
  CHECK_THAT(error_line(empty), Contains("0 rows appended, 0 batches drawn; batch 0 needs 2 rows"));
  REQUIRE(append_keys(*buffer, 0, 6).ok());  // capacity + ahead
  const absl::Status full = append_keys(*buffer, 6, 7);
  CHECK(exit_code(full) == ExitCode::kStalledWorker);
  CHECK_THAT(error_line(full), Contains("no room for 1 rows") && Contains("6 rows appended, 0 batches drawn"));
  // Batch 3 needs row 5; the row that it leaves out is free after batch 2.
  for (int64_t k = 0; k < 2; ++k) static_cast<void>(next(*buffer));
  CHECK_FALSE(append_keys(*buffer, 6, 7).ok());
  static_cast<void>(next(*buffer));
  CHECK(append_keys(*buffer, 6, 7).ok());

  const auto unlimited = make({.capacity = 4, .batch_size = 2, .min_size = 2, .samples_per_insert = 2, .ahead = 2});
  std::thread sampler([&] { CHECK(unlimited->next().status().message() == "enough"); });
  std::thread stopper([&] { unlimited->stop(absl::CancelledError("enough")); });
  sampler.join();
  stopper.join();
  CHECK(unlimited->append(batch_of(0, 1)).message() == "enough");
}

TEST_CASE("Rows are seen all or none, in the order of their reservation", "[rl][replay]") {
  const auto buffer = make({.capacity = 8, .batch_size = 4, .min_size = 1, .ahead = 8});
  ReplayRows first = buffer->reserve(2).value(), second = buffer->reserve(3).value();
  for (int64_t row = 0; row < 3; ++row) write_row(second, row, 10 + row);
  second.commit();
  CHECK(buffer->rows() == 0);  // the first rows are not complete
  CHECK_FALSE(buffer->can_sample());
  for (int64_t row = 0; row < 2; ++row) write_row(first, row, row);
  first.commit();
  CHECK(buffer->rows() == 5);
  CHECK_THROWS_WITH(first.commit(), Contains("committed already"));
}

TEST_CASE("Rows that are given up leave no trace", "[rl][replay]") {
  const auto buffer = make({.capacity = 8, .batch_size = 64, .min_size = 1, .ahead = 8});
  { const ReplayRows last = buffer->reserve(5).value(); }
  REQUIRE(append_keys(*buffer, 0, 2).ok());
  CHECK(buffer->rows() == 2);
  {
    std::optional<ReplayRows> dropped = buffer->reserve(3).value();
    ReplayRows kept = buffer->reserve(2).value();
    std::optional<ReplayRows> also_dropped = buffer->reserve(1).value();
    ReplayRows last = buffer->reserve(1).value();
    for (int64_t row = 0; row < 2; ++row) write_row(kept, row, 2 + row);
    write_row(last, 0, 4);
    dropped.reset();
    kept.commit();
    also_dropped.reset();
    CHECK(buffer->rows() == 2);
    last.commit();
  }
  CHECK(buffer->rows() == 5);
  REQUIRE(append_keys(*buffer, 5, 6).ok());
  const Batch batch = next(*buffer);
  CHECK(torn_rows(batch) == 0);
  const std::vector<int64_t> keys = keys_of(batch);
  CHECK(std::set<int64_t>(keys.begin(), keys.end()) == std::set<int64_t>{0, 1, 2, 3, 4, 5});
  CHECK(std::vector<int64_t>(batch.row_indices().begin(), batch.row_indices().end()) == keys);
}

TEST_CASE("Eight appenders and a sampler never see a torn row", "[rl][replay]") {
  const bool is_exact = GENERATE(true, false);
  constexpr int64_t kThreads = 8, kRows = 4000, kBatches = 300;
  // The exact buffer needs 64 + 299 * 32 / 0.5 = 19,200 of the 32,000 rows, of which a few are given up.
  const auto buffer = make({.capacity = 200,
                            .batch_size = 32,
                            .min_size = 64,
                            .samples_per_insert = is_exact ? 0.5 : 0,
                            .ahead = 64,
                            .timeout = std::chrono::seconds(60)});
  std::vector<absl::Status> results(kThreads);
  std::vector<std::thread> appenders;
  for (int64_t thread = 0; thread < kThreads; ++thread) {
    appenders.emplace_back([&, thread] {
      absl::Status& status = results[static_cast<size_t>(thread)];
      for (int64_t i = 0; i < kRows && status.ok();) {
        const int64_t key = thread * kRows + i, count = 1 + (i + thread) % 7;
        if (thread % 2 == 0) {
          status = buffer->append(batch_of(key, key + count));
        } else if (auto rows = buffer->reserve(count); rows.ok()) {
          for (int64_t row = 0; row < count; ++row) write_row(*rows, row, key + row);
          if (i % 10 != 3) rows->commit();  // else they are given up
        } else {
          status = rows.status();
        }
        i += count;
      }
    });
  }
  int64_t torn = 0, strange = 0;
  for (int64_t k = 0; k < kBatches; ++k) {
    const auto batch = buffer->next();
    REQUIRE(batch.status() == absl::OkStatus());
    torn += torn_rows(**batch);
    for (const int64_t row : (*batch)->row_indices()) {
      const int64_t high = 64 + k * 64;
      if (is_exact && (row >= high || row < high - 200)) ++strange;
    }
  }
  buffer->stop(absl::CancelledError("end"));
  for (std::thread& appender : appenders) appender.join();
  CHECK(torn == 0);
  CHECK(strange == 0);
  for (const absl::Status& status : results) CHECK((status.ok() || status.message() == "end"));
}

TEST_CASE("A batch that is kept is not overwritten", "[rl][replay]") {
  const auto buffer = make({.capacity = 64, .batch_size = 8, .min_size = 64});
  REQUIRE(append_keys(*buffer, 0, 64).ok());
  const Batch kept = next(*buffer);
  const at::Tensor keys = kept["key"].clone();
  for (int64_t i = 0; i < 5; ++i) static_cast<void>(next(*buffer));
  CHECK(at::equal(kept["key"], keys));
  const void* memory = nullptr;
  {
    const Batch dropped = next(*buffer);
    memory = dropped["key"].const_data_ptr();
  }
  static_cast<void>(next(*buffer));
  CHECK(next(*buffer)["key"].const_data_ptr() == memory);  // used again
}

TEST_CASE("Options out of range, and rows that do not fit, are refused", "[rl][replay]") {
  const auto refused = [](const ReplayBufferOptions& options, const std::string& text) {
    const absl::Status status = ReplayBuffer::create(replay_fields(), options).status();
    CHECK(exit_code(status) == ExitCode::kUsage);
    CHECK_THAT(error_line(status), Contains(text));
  };
  refused({.capacity = 0}, "capacity must be >= 1, got 0");
  refused({.capacity = 5, .batch_size = 0}, "batch_size must be >= 1");
  refused({.capacity = 5, .min_size = 6}, "min_size must be in [1, capacity], got 6");
  refused({.capacity = 5, .samples_per_insert = -1}, "samples_per_insert must be >= 0");
  refused({.capacity = 5, .ahead = 0}, "ahead must be >= 1");
  CHECK(exit_code(ReplayBuffer::create({}, {.capacity = 5}).status()) == ExitCode::kUsage);
  CHECK(exit_code(ReplayBuffer::create(replay_fields(), {.capacity = int64_t{1} << 60}).status()) ==
        ExitCode::kOutOfMemory);

  const auto buffer = make({.capacity = 8, .ahead = 4});
  CHECK(exit_code(buffer->reserve(5).status()) == ExitCode::kUsage);
  CHECK(exit_code(buffer->append(batch_of(0, 5))) == ExitCode::kUsage);
  const Batch wrong(std::make_shared<const std::vector<FieldSpec>>(std::vector<FieldSpec>{{"key", at::kLong, {}}}),
                    {torch::arange(2)});
  CHECK(exit_code(buffer->append(wrong)) == ExitCode::kData);
  CHECK(buffer->rows() == 0);
}
