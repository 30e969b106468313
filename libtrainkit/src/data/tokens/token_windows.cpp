#include "trainkit/data/token_windows.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "trainkit/core/random.h"
#include "trainkit/data/adapters.h"

namespace trainkit {
namespace {

constexpr uint64_t kOffsetStream = 0x6f66667365740001;  // separates the offsets from other uses of (seed, epoch)

}  // namespace

TokenWindows::TokenWindows(TokenFile file, const TokenWindowsOptions& options)
    : file_(std::move(file)), options_(options) {
  if (options_.end == -1) options_.end = file_.size();
  const int64_t block = options_.block_size;
  TORCH_CHECK_VALUE(block >= 1, "block_size must be >= 1, got ", block);
  TORCH_CHECK_VALUE(0 <= options_.begin && options_.begin <= options_.end && options_.end <= file_.size(), "[",
                    options_.begin, ", ", options_.end, ") is not a part of ", file_.size(), " tokens");
  const int64_t targets = options_.end - options_.begin - 1;
  const int64_t least = options_.whole ? 1 : block;
  TORCH_CHECK_VALUE(targets >= least, "expected at least ", least + 1, " tokens, got ", targets + 1);
  if (options_.whole) {
    size_ = (targets + block - 1) / block;
  } else {
    size_ = std::max<int64_t>(1, (targets - (block - 1)) / block);
    offsets_ = std::min(block, targets - size_ * block + 1);
  }
  fields_ = {{"x", at::kLong, {block}}, {"y", at::kLong, {block}}};
  if (options_.document_end >= 0) fields_.push_back({"positions", at::kLong, {block}});
}

int64_t TokenWindows::window_begin(const RowKey& key) const {
  const uint64_t draw =
      RandomStream(hash_key(kOffsetStream, key.seed, key.epoch)).below(static_cast<uint64_t>(offsets_));
  return options_.begin + (options_.whole ? 0 : static_cast<int64_t>(draw)) + key.index * options_.block_size;
}

int64_t TokenWindows::targets(int64_t index) const {
  const int64_t begin = options_.begin + index * options_.block_size;
  const int64_t count = std::min(options_.block_size, options_.end - 1 - begin);
  if (options_.document_end < 0) return count;
  return count - count_tokens(file_, begin, begin + count, options_.document_end);
}

void TokenWindows::get(const RowKey& key, const BatchView& out, int64_t at) const {
  const auto block = static_cast<size_t>(options_.block_size);
  const int64_t begin = window_begin(key);
  auto* const x = out.row<int64_t>(0, at);
  auto* const y = out.row<int64_t>(1, at);
  const auto count = std::min(block, static_cast<size_t>(options_.end - 1 - begin));  // fewer at the end of a `whole`
  file_.read(begin, {x, count});
  std::memcpy(y, x + 1, (count - 1) * sizeof *y);
  file_.read(begin + static_cast<int64_t>(count), {y + count - 1, 1});
  std::fill(x + count, x + block, 0);
  std::fill(y + count, y + block, kNoTarget);
  if (options_.document_end >= 0) pack(y, out.row<int64_t>(2, at), x, static_cast<int64_t>(count));
}

void TokenWindows::pack(int64_t* y, int64_t* positions, const int64_t* x, int64_t count) const {
  int64_t position = 0;
  for (int64_t i = 0; i < count; ++i) {
    positions[i] = position++;
    if (x[i] != options_.document_end) continue;
    y[i] = kNoTarget;
    position = 0;
  }
  // The padding is a document of its own.
  for (int64_t i = count; i < options_.block_size; ++i) positions[i] = i - count;
}

void TokenWindows::get_batch(std::span<const RowKey> keys, const BatchView& out) const {
  constexpr size_t kAhead = 4;  // windows whose first cache lines are prefetched
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + kAhead < keys.size())
      file_.prefetch(window_begin(keys[i + kAhead]), std::min<int64_t>(options_.block_size, 512));
    get(keys[i], out, static_cast<int64_t>(i));
  }
}

int64_t count_tokens(const TokenFile& file, int64_t begin, int64_t end, int64_t token) {
  std::vector<int64_t> some(static_cast<size_t>(std::min<int64_t>(1 << 16, end - begin)));
  int64_t count = 0;
  for (int64_t at = begin; at < end; at += static_cast<int64_t>(some.size())) {
    const auto read = std::span(some).first(static_cast<size_t>(std::min<int64_t>(std::ssize(some), end - at)));
    file.read(at, read);
    count += std::count(read.begin(), read.end(), token);
  }
  return count;
}

int64_t ValidationRows::targets(std::span<const int64_t> rows) const {
  int64_t sum = 0;
  for (const int64_t row : rows) sum += targets_of(row);
  return sum;
}

ValidationRows validation_rows(const std::vector<std::shared_ptr<const TokenWindows>>& texts, int64_t max_rows) {
  ValidationRows rows;
  rows.targets_of = [texts](int64_t row) {
    size_t text = 0;
    while (row >= texts[text]->size()) row -= texts[text++]->size();
    return texts[text]->targets(row);
  };
  rows.dataset = texts[0];
  if (texts.size() > 1) {
    rows.dataset =
        std::make_shared<ConcatDataset>(std::vector<std::shared_ptr<const Dataset>>(texts.begin(), texts.end()));
  }
  const int64_t size = rows.dataset->size();
  if (max_rows == 0 || max_rows >= size) return rows;
  const auto row_at = [size, max_rows](int64_t i) {
    return static_cast<int64_t>(static_cast<double>(i) * static_cast<double>(size) / static_cast<double>(max_rows));
  };
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < max_rows; ++i) chosen.push_back(row_at(i));
  rows.dataset = std::make_shared<Subset>(rows.dataset, std::move(chosen));
  rows.targets_of = [row_at, targets_of = rows.targets_of](int64_t i) { return targets_of(row_at(i)); };
  return rows;
}

}  // namespace trainkit
