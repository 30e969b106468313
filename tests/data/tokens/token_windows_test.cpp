#include "trainkit/data/token_windows.h"

#include <algorithm>
#include <map>
#include <set>

#include "contract/dataset_contract.h"
#include "test_util.h"
#include "trainkit/data/prefetcher.h"

using namespace trainkit;

namespace {

constexpr int64_t kIgnoreIndex = TokenWindows::kNoTarget;

}  // namespace

namespace {

/// A file of the tokens 0, 1, 2, ..., so that a token equals its position.
TokenFile counting_file(const test::TempDir& folder, int64_t size) {
  const TokenFileOrigin origin{
      .vocab_size = size, .tokenizer_digest = std::string(32, '0'), .source_digest = std::string(32, '0')};
  const std::string path = folder / ("tokens" + std::to_string(size));
  std::vector<TokenId> tokens(static_cast<size_t>(size));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i);
  REQUIRE(write_token_file(path, origin, [&](const TokenSink& sink) { return sink(tokens); }).ok());
  return TokenFile::open(path).value();
}

/// All rows of one epoch: (rows, block) each.
std::pair<at::Tensor, at::Tensor> epoch_of(const TokenWindows& windows, int64_t epoch, uint64_t seed) {
  const int64_t rows = windows.size(), block = windows.fields()[0].shape[0];
  at::Tensor x = torch::full({rows, block}, -1, at::kLong), y = torch::full({rows, block}, -1, at::kLong);
  const std::vector<BatchView::Field> fields = {{static_cast<std::byte*>(x.data_ptr()), block * 8},
                                                {static_cast<std::byte*>(y.data_ptr()), block * 8}};
  std::vector<RowKey> keys;
  for (int64_t i = 0; i < rows; ++i) keys.push_back({.index = i, .epoch = epoch, .seed = seed});
  windows.get_batch(keys, BatchView(fields, rows));
  return {x, y};
}

}  // namespace

TEST_CASE("An epoch has every non-overlapping window once, from an offset that changes by epoch",
          "[data][token_windows]") {
  const test::TempDir folder;
  const TokenWindows windows(counting_file(folder, 1000), {.block_size = 16});
  std::map<int64_t, int> offsets;
  for (int64_t epoch = 0; epoch < 400; ++epoch) {
    const auto [x, y] = epoch_of(windows, epoch, 7);
    CHECK(torch::equal(y, x + 1));
    const int64_t first = x[0][0].item<int64_t>();
    CHECK(torch::equal(x.flatten(), torch::arange(first, first + x.numel())));
    CHECK(x.size(0) >= (1000 - 2 * 16) / 16);
    CHECK(y.max().item<int64_t>() < 1000);
    ++offsets[first];
  }
  CHECK(offsets.size() == 16);  // every offset, about equally often
  for (const auto& [offset, count] : offsets) CHECK((offset >= 0 && offset < 16 && count > 5 && count < 60));
  CHECK(torch::equal(epoch_of(windows, 3, 7).first, epoch_of(windows, 3, 7).first));
  int64_t same = 0;
  for (int64_t epoch = 0; epoch < 50; ++epoch) {
    same += torch::equal(epoch_of(windows, epoch, 7).first, epoch_of(windows, epoch, 8).first);
  }
  CHECK(same < 15);
}

TEST_CASE("No offset reads past the end, for any length", "[data][token_windows]") {
  const test::TempDir folder;
  for (int64_t size = 5; size < 40; ++size) {
    const TokenWindows windows(counting_file(folder, size), {.block_size = 4});
    CHECK(windows.size() == std::max<int64_t>(1, (size - 4) / 4));
    for (int64_t epoch = 0; epoch < 20; ++epoch) CHECK(epoch_of(windows, epoch, 1).second.max().item<int64_t>() < size);
  }
}

TEST_CASE("A whole split has every token except the first as a target once", "[data][token_windows]") {
  const test::TempDir folder;
  for (const int64_t end : {902, 916, 917, 918, 1000}) {
    const TokenWindows windows(counting_file(folder, 1000),
                               {.block_size = 16, .begin = 900, .end = end, .whole = true});
    const auto [x, y] = epoch_of(windows, 5, 9);
    const at::Tensor targets = y.masked_select(y != kIgnoreIndex);
    CHECK(torch::equal(targets, torch::arange(901, end)));
    CHECK(torch::equal(x.masked_select(y != kIgnoreIndex), torch::arange(900, end - 1)));
    CHECK((x.masked_select(y == kIgnoreIndex) == 0).all().item<bool>());
    int64_t sum = 0;
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < windows.size(); ++i) rows.push_back(i), sum += windows.targets(i);
    CHECK(sum == end - 901);
    const auto shared = std::make_shared<const TokenWindows>(windows);
    CHECK(validation_rows({shared}).targets(rows) == sum);
  }
}

TEST_CASE("A part of the windows is evenly spaced over all texts, with their own numbers of targets",
          "[data][token_windows]") {
  const test::TempDir folder;
  const auto windows = [&](int64_t size) {
    return std::make_shared<const TokenWindows>(counting_file(folder, size),
                                                TokenWindowsOptions{.block_size = 10, .whole = true});
  };
  const std::vector<std::shared_ptr<const TokenWindows>> texts = {windows(96), windows(54)};  // 10 and 6 windows
  const auto targets_of = [&](int64_t max_rows) {
    const ValidationRows rows = validation_rows(texts, max_rows);
    std::vector<int64_t> targets;
    for (int64_t i = 0; i < rows.dataset->size(); ++i) targets.push_back(rows.targets_of(i));
    return targets;
  };
  const std::vector<int64_t> all = {10, 10, 10, 10, 10, 10, 10, 10, 10, 5, 10, 10, 10, 10, 10, 3};
  CHECK(targets_of(0) == all);
  CHECK(targets_of(16) == all);
  CHECK(targets_of(1000) == all);
  CHECK(targets_of(1) == std::vector<int64_t>{10});
  CHECK(targets_of(15) == std::vector<int64_t>{10, 10, 10, 10, 10, 10, 10, 10, 10, 5, 10, 10, 10, 10, 10});
  const ValidationRows some = validation_rows(texts, 4);  // windows 0, 4, 8 and 12
  auto loader = Prefetcher::create(some.dataset, SequentialSampler(4), {.batch_size = 4}).value();
  const Batch batch = *loader->next().value();
  CHECK(torch::equal(batch["x"].select(1, 0), torch::tensor({0, 40, 80, 20}, at::kLong)));
  CHECK(some.targets(batch.row_indices()) == (batch["y"] != kIgnoreIndex).sum().item<int64_t>());
}

TEST_CASE("Packed documents have positions of their own and no target at their end", "[data][token_windows]") {
  const test::TempDir folder;
  const std::vector<TokenId> tokens = {4, 5, 9, 6, 9, 9, 1, 2, 3, 9, 7, 8};  // 9 ends a document
  const TokenFileOrigin origin{
      .vocab_size = 10, .tokenizer_digest = std::string(32, '0'), .source_digest = std::string(32, '0')};
  REQUIRE(write_token_file(folder / "packed", origin, [&](const TokenSink& sink) { return sink(tokens); }).ok());
  const auto windows =
      std::make_shared<const TokenWindows>(TokenFile::open(folder / "packed").value(),
                                           TokenWindowsOptions{.block_size = 4, .whole = true, .document_end = 9});
  REQUIRE(windows->fields().size() == 3);
  auto loader = Prefetcher::create(windows, SequentialSampler(3), {.batch_size = 3}).value();
  const Batch batch = *loader->next().value();
  constexpr int64_t kNone = kIgnoreIndex;
  CHECK(torch::equal(batch["x"], torch::tensor({{4, 5, 9, 6}, {9, 9, 1, 2}, {3, 9, 7, 0}}, at::kLong)));
  CHECK(torch::equal(batch["y"],
                     torch::tensor({{5L, 9L, kNone, 9L}, {kNone, kNone, 2L, 3L}, {9L, kNone, 8L, kNone}}, at::kLong)));
  CHECK(torch::equal(batch["positions"], torch::tensor({{0, 1, 2, 0}, {0, 0, 0, 1}, {0, 1, 0, 0}}, at::kLong)));
  for (int64_t row = 0; row < 3; ++row) {
    CHECK(windows->targets(row) == (batch["y"][row] != kIgnoreIndex).sum().item<int64_t>());
  }
  CHECK(count_tokens(TokenFile::open(folder / "packed").value(), 1, 12, 9) == 4);
  test::check_dataset_contract(windows);
}

TEST_CASE("A split that is too short or empty is an error", "[data][token_windows]") {
  const test::TempDir folder;
  const TokenFile file = counting_file(folder, 20);
  CHECK_THROWS_AS(TokenWindows(file, {.block_size = 20}), c10::ValueError);
  CHECK_THROWS_AS(TokenWindows(file, {.block_size = 0}), c10::ValueError);
  CHECK_THROWS_AS(TokenWindows(file, {.block_size = 4, .begin = -1}), c10::ValueError);
  CHECK_THROWS_AS(TokenWindows(file, {.block_size = 4, .end = 21}), c10::ValueError);
  CHECK_THROWS_AS(TokenWindows(file, {.block_size = 4, .begin = 19, .whole = true}), c10::ValueError);
  CHECK(TokenWindows(file, {.block_size = 19}).size() == 1);
  CHECK(TokenWindows(file, {.block_size = 4, .begin = 18, .whole = true}).size() == 1);
}

TEST_CASE("TokenWindows satisfies the contract of a dataset, for training and for evaluation",
          "[data][token_windows]") {
  const test::TempDir folder;
  const TokenFile file = counting_file(folder, 3000);
  for (const bool whole : {false, true}) {
    for (const int64_t block : {1, 8, 64}) {
      INFO("whole " << whole << ", block " << block);
      test::check_dataset_contract(
          std::make_shared<TokenWindows>(file, TokenWindowsOptions{.block_size = block, .begin = 7, .whole = whole}));
    }
  }
}

TEST_CASE("A loader's epoch has no token twice, and the next epoch has other windows", "[data][token_windows]") {
  const test::TempDir folder;
  const auto windows =
      std::make_shared<TokenWindows>(counting_file(folder, 3000), TokenWindowsOptions{.block_size = 8});
  auto loader =
      Prefetcher::create(windows, RandomSampler(windows->size(), {.seed = 3}), {.batch_size = 32, .num_workers = 2})
          .value();
  std::vector<at::Tensor> epochs;
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<at::Tensor> batches;
    while (auto batch = loader->next().value()) batches.push_back((*batch)["x"].clone());
    epochs.push_back(torch::cat(batches));
  }
  CHECK(std::get<0>(epochs[0].flatten().sort()).diff().min().item<int64_t>() == 1);
  CHECK_FALSE(torch::equal(epochs[0], epochs[1]));
}
