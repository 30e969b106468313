#include "trainkit/data/adapters.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "data/datasets/copy_rows.h"
#include "data/datasets/occurrences.h"
#include "data/datasets/scratch.h"

namespace trainkit {
namespace {

constexpr int64_t kChunkBytes = 64 << 10;  // bytes that a map processes at a time: fits the L1/L2 cache

std::shared_ptr<const Dataset> not_null(const char* who, std::shared_ptr<const Dataset> dataset) {
  TORCH_CHECK_VALUE(dataset != nullptr, who, ": the dataset must not be null");
  return dataset;
}

// Byte offsets of the fields in a row that stores them one after the other; the last entry is the row size.
std::vector<int64_t> offsets_in_row(const std::vector<FieldSpec>& fields) {
  std::vector<int64_t> offsets = {0};
  for (const FieldSpec& field : fields) offsets.push_back(offsets.back() + field.row_bytes());
  return offsets;
}

int64_t rows_per_chunk(int64_t row_bytes) {
  return std::max<int64_t>(1, kChunkBytes / std::max<int64_t>(1, row_bytes));
}

}  // namespace

// ---- MapDataset

MapDataset::MapDataset(std::shared_ptr<const Dataset> dataset, InPlace function)
    : dataset_(not_null("MapDataset", std::move(dataset))),
      fields_(dataset_->fields()),
      in_place_(std::move(function)) {
  TORCH_CHECK_VALUE(in_place_ != nullptr, "MapDataset: the function must not be empty");
  in_bytes_ = offsets_in_row(fields_).back();
}

MapDataset::MapDataset(std::shared_ptr<const Dataset> dataset, std::vector<FieldSpec> fields, Function function)
    : dataset_(not_null("MapDataset", std::move(dataset))), fields_(std::move(fields)), function_(std::move(function)) {
  TORCH_CHECK_VALUE(function_ != nullptr, "MapDataset: the function must not be empty");
  for (auto field = fields_.begin(); field != fields_.end(); ++field) {
    TORCH_CHECK_VALUE(
        std::none_of(fields_.begin(), field, [&](const FieldSpec& other) { return other.name == field->name; }),
        "MapDataset: duplicate field name ", field->name);
  }
  for (const FieldSpec& field : dataset_->fields()) {
    in_offsets_.push_back(in_bytes_);
    in_bytes_ += (field.row_bytes() + 63) / 64 * 64;  // aligned for any element type
  }
}

void MapDataset::get(const RowKey& key, const BatchView& out, int64_t at) const { map({&key, 1}, out.slice(at, 1)); }

void MapDataset::get_batch(std::span<const RowKey> keys, const BatchView& out) const {
  const auto chunk = static_cast<size_t>(rows_per_chunk(in_bytes_));
  for (size_t at = 0; at < keys.size(); at += chunk) {
    const auto some = keys.subspan(at, std::min(chunk, keys.size() - at));
    map(some, out.slice(static_cast<int64_t>(at), static_cast<int64_t>(some.size())));
  }
}

void MapDataset::map(std::span<const RowKey> keys, const BatchView& out) const {
  const auto rows = static_cast<int64_t>(keys.size());
  if (in_place_) {
    dataset_->get_batch(keys, out);
    for (int64_t i = 0; i < rows; ++i) in_place_(keys[i], out.slice(i, 1));
    return;
  }
  detail::Scratch<std::max_align_t> memory;
  memory->resize((in_bytes_ * rows + 64) / sizeof(std::max_align_t) + 1);
  auto* begin = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory->data()) + 63) / 64 * 64);
  detail::Scratch<BatchView::Field> in_fields;
  in_fields->clear();
  for (size_t i = 0; i < in_offsets_.size(); ++i) {
    in_fields->push_back({begin + in_offsets_[i] * rows, dataset_->fields()[i].row_bytes()});
  }
  const BatchView in(*in_fields, rows);
  dataset_->get_batch(keys, in);
  for (int64_t i = 0; i < rows; ++i) function_(keys[i], in.slice(i, 1), out.slice(i, 1));
}

// ---- Subset

Subset::Subset(std::shared_ptr<const Dataset> dataset, std::vector<int64_t> indices)
    : dataset_(not_null("Subset", std::move(dataset))), indices_(std::move(indices)) {
  for (const int64_t index : indices_) {
    TORCH_CHECK_INDEX(index >= 0 && index < dataset_->size(), "Subset: index ", index, " is out of range for ",
                      dataset_->size(), " rows");
  }
  occurrences_ = detail::occurrences_of(indices_);
}

void Subset::get(const RowKey& key, const BatchView& out, int64_t at) const { dataset_->get(inner_key(key), out, at); }

void Subset::get_batch(std::span<const RowKey> keys, const BatchView& out) const {
  detail::Scratch<RowKey> inner;
  inner->clear();
  for (const RowKey& key : keys) inner->push_back(inner_key(key));
  dataset_->get_batch(*inner, out);
}

// ---- ConcatDataset

ConcatDataset::ConcatDataset(std::vector<std::shared_ptr<const Dataset>> datasets) : datasets_(std::move(datasets)) {
  TORCH_CHECK_VALUE(!datasets_.empty(), "ConcatDataset: expected at least one dataset");
  for (const auto& dataset : datasets_) {
    not_null("ConcatDataset", dataset);
    TORCH_CHECK_VALUE(dataset->fields() == datasets_.front()->fields(), "ConcatDataset: the fields of dataset ",
                      ends_.size(), " differ from those of dataset 0");
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + dataset->size());
  }
  part_occurrences_ = detail::occurrences_of_parts(datasets_, row_occurrences_);
}

RowKey ConcatDataset::inner_key(const RowKey& key, size_t part) const {
  const int64_t row = key.index - begin_of(part);
  int64_t occurrence = part_occurrences_[part];
  if (!row_occurrences_[part].empty()) {
    const auto found = row_occurrences_[part].find(row);
    if (found != row_occurrences_[part].end()) occurrence = found->second;
  }
  return key.inner(row, occurrence);
}

size_t ConcatDataset::part_of(int64_t index) const {
  return std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin();
}

void ConcatDataset::get(const RowKey& key, const BatchView& out, int64_t at) const {
  const size_t part = part_of(key.index);
  datasets_[part]->get(inner_key(key, part), out, at);
}

// Reads consecutive rows of the same dataset with one call.
void ConcatDataset::get_batch(std::span<const RowKey> keys, const BatchView& out) const {
  detail::Scratch<RowKey> inner;
  inner->clear();
  for (size_t at = 0, end; at < keys.size(); at = end) {
    const size_t part = part_of(keys[at].index);
    for (end = at; end < keys.size() && keys[end].index >= begin_of(part) && keys[end].index < ends_[part]; ++end) {
      inner->push_back(inner_key(keys[end], part));
    }
    datasets_[part]->get_batch(std::span<const RowKey>(*inner).subspan(at, end - at),
                               out.slice(static_cast<int64_t>(at), static_cast<int64_t>(end - at)));
  }
}

void ConcatDataset::prefetch(int64_t index) const {
  const size_t part = part_of(index);
  datasets_[part]->prefetch(index - begin_of(part));
}

std::string ConcatDataset::describe(int64_t index) const {
  const size_t part = part_of(index);
  return datasets_[part]->describe(index - begin_of(part));
}

std::pair<const Dataset*, int64_t> ConcatDataset::source(int64_t index) const {
  const size_t part = part_of(index);
  return datasets_[part]->source(index - begin_of(part));
}

std::vector<const Dataset*> ConcatDataset::sources() const {
  std::vector<const Dataset*> all;
  for (const auto& dataset : datasets_) {
    const std::vector<const Dataset*> some = dataset->sources();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

// ---- StackDataset

StackDataset::StackDataset(std::vector<std::shared_ptr<const Dataset>> datasets) : datasets_(std::move(datasets)) {
  TORCH_CHECK_VALUE(!datasets_.empty(), "StackDataset: expected at least one dataset");
  for (size_t i = 0; i < datasets_.size(); ++i) {
    not_null("StackDataset", datasets_[i]);
    TORCH_CHECK_VALUE(datasets_[i]->size() == datasets_.front()->size(), "StackDataset: dataset ", i, " has ",
                      datasets_[i]->size(), " rows, dataset 0 has ", datasets_.front()->size());
    for (const FieldSpec& field : datasets_[i]->fields()) {
      const bool is_new = std::none_of(fields_.begin(), fields_.end(),
                                       [&](const FieldSpec& other) { return other.name == field.name; });
      TORCH_CHECK_VALUE(is_new, "StackDataset: two datasets have a field '", field.name,
                        "'; rename one with a MapDataset");
      fields_.push_back(field);
    }
  }
}

void StackDataset::for_each(const BatchView& out,
                            const std::function<void(const Dataset&, const BatchView&)>& read) const {
  size_t first = 0;
  for (const auto& dataset : datasets_) {
    const size_t count = dataset->fields().size();
    read(*dataset, out.fields(first, count));
    first += count;
  }
}

void StackDataset::get(const RowKey& key, const BatchView& out, int64_t at) const {
  for_each(out, [&](const Dataset& dataset, const BatchView& part) { dataset.get(key, part, at); });
}

void StackDataset::get_batch(std::span<const RowKey> keys, const BatchView& out) const {
  for_each(out, [&](const Dataset& dataset, const BatchView& part) { dataset.get_batch(keys, part); });
}

void StackDataset::prefetch(int64_t index) const {
  for (const auto& dataset : datasets_) dataset->prefetch(index);
}

std::string StackDataset::describe(int64_t index) const {
  std::string text;
  for (const auto& dataset : datasets_) {
    const std::string name = dataset->describe(index);
    if (!name.empty()) text += (text.empty() ? "" : " + ") + name;
  }
  return text;
}

// ---- CachedDataset

namespace {
enum RowState : uint8_t { kAbsent, kBeingWritten, kPresent };
}  // namespace

// Note [Lock-free row cache]
//
// states_[i] of row i goes from kAbsent to kBeingWritten to kPresent and never back. The compare-exchange in store()
// selects one writer. Its release store of kPresent follows the copy, and the acquire load in present() precedes every
// read, so a reader sees either no row or all of it. A worker that loses the race has already read the row into its own
// batch and does not wait. kAbsent is 0, the value of the zero-initialised array.
//
// The cache reserves address space for all rows at once (MAP_NORESERVE). The kernel provides a page when a row is first
// written to it, so memory grows with the cached rows and rows never move.

CachedDataset::CachedDataset(std::shared_ptr<const Dataset> dataset, CachedDatasetOptions options)
    : dataset_(not_null("CachedDataset", std::move(dataset))), offsets_(offsets_in_row(dataset_->fields())) {
  row_bytes_ = offsets_.back();
  capacity_ = dataset_->size();
  if (options.max_bytes >= 0 && row_bytes_ > 0) capacity_ = std::min(capacity_, options.max_bytes / row_bytes_);
  states_ = std::make_unique<std::atomic<uint8_t>[]>(capacity_);
  if (capacity_ * row_bytes_ == 0) return;
  // Reserves address space only. See Note [Lock-free row cache].
  void* memory =
      mmap(nullptr, capacity_ * row_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  rows_ = static_cast<std::byte*>(memory);
}

CachedDataset::~CachedDataset() {
  if (rows_) munmap(rows_, capacity_ * row_bytes_);
}

bool CachedDataset::present(int64_t index) const {
  return index < capacity_ && states_[index].load(std::memory_order_acquire) == kPresent;
}

void CachedDataset::load(int64_t index, const BatchView& out, int64_t at) const {
  const std::byte* row = rows_ + index * row_bytes_;
  for (size_t i = 0; i + 1 < offsets_.size(); ++i)
    std::memcpy(out.row(i, at), row + offsets_[i], offsets_[i + 1] - offsets_[i]);
}

void CachedDataset::store(int64_t index, const BatchView& from, int64_t at) const {
  uint8_t absent = kAbsent;
  if (index >= capacity_ || !states_[index].compare_exchange_strong(absent, kBeingWritten, std::memory_order_relaxed))
    return;
  std::byte* row = rows_ + index * row_bytes_;
  for (size_t i = 0; i + 1 < offsets_.size(); ++i)
    std::memcpy(row + offsets_[i], from.row(i, at), offsets_[i + 1] - offsets_[i]);
  states_[index].store(kPresent, std::memory_order_release);
  cached_rows_.fetch_add(1, std::memory_order_relaxed);
}

void CachedDataset::get(const RowKey& key, const BatchView& out, int64_t at) const {
  if (present(key.index)) return load(key.index, out, at);
  dataset_->get(key, out, at);
  store(key.index, out, at);
}

// Copies rows that are present and reads runs of absent rows with one call.
void CachedDataset::get_batch(std::span<const RowKey> keys, const BatchView& out) const {
  constexpr size_t kAhead = 8;
  for (size_t at = 0; at < keys.size();) {
    if (at + kAhead < keys.size()) prefetch(keys[at + kAhead].index);
    if (present(keys[at].index)) {
      load(keys[at].index, out, static_cast<int64_t>(at));
      ++at;
      continue;
    }
    size_t end = at + 1;
    while (end < keys.size() && !present(keys[end].index)) ++end;
    dataset_->get_batch(keys.subspan(at, end - at),
                        out.slice(static_cast<int64_t>(at), static_cast<int64_t>(end - at)));
    for (; at < end; ++at) store(keys[at].index, out, static_cast<int64_t>(at));
  }
}

void CachedDataset::prefetch(int64_t index) const {
  if (!present(index)) return dataset_->prefetch(index);
  prefetch_bytes(rows_ + index * row_bytes_, row_bytes_);
}

}  // namespace trainkit
