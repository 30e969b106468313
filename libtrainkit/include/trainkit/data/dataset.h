#pragma once
/// Training data as rows; all rows have the same named fields.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/core/random.h"

namespace trainkit {

/// Declares one field of a row. A dataset declares its fields once.
struct FieldSpec {
  std::string name = {};
  at::ScalarType dtype = at::kFloat;
  /// Shape of one row, without the batch dimension; {} is a scalar. A batch of N rows has shape (N, shape...).
  /// A field of variable length declares its upper bound here and its actual length in another field (int64, shape {}).
  std::vector<int64_t> shape = {};

  /// Bytes of one row of this field.
  int64_t row_bytes() const;
  friend bool operator==(const FieldSpec&, const FieldSpec&) = default;
  /// "image: Float [3, 32, 32]"
  friend std::ostream& operator<<(std::ostream& out, const FieldSpec& field);
};

/// Identifies a row and the state of its random augmentation.
struct RowKey {
  int64_t index = 0;
  int64_t epoch = 0;
  uint64_t seed = 0;
  /// Row index in the outermost dataset. A dataset that wraps another one keeps it (see `inner`), so that messages name
  /// the row that the user knows.
  int64_t origin = -1;
  /// Distinguishes the occurrences of a row in one epoch: Sampler::draw of the position, changed by datasets that show
  /// a row several times; 0 if rows do not repeat.
  int64_t draw = 0;
  /// Number of datasets that have passed the key on with `inner`.
  int64_t depth = 0;

  /// Value of `draw` for a row that is read outside an epoch: all its occurrences are the same.
  static constexpr int64_t kUndrawn = std::numeric_limits<int64_t>::min();
  bool is_first_draw() const { return draw == 0 || draw == kUndrawn; }

  /// Returns the key for row `row` of the dataset that this key's dataset wraps. A dataset that shows that row several
  /// times passes 0, 1, 2, ... for its occurrences: each has its own random numbers, the first those of a row that does
  /// not repeat.
  RowKey inner(int64_t row, int64_t occurrence = 0) const {
    RowKey key = *this;
    key.index = row;
    ++key.depth;
    if (occurrence != 0 && draw != kUndrawn) key.draw = static_cast<int64_t>(hash_key(draw, key.depth, occurrence));
    return key;
  }

  /// Returns the random generator of this row in this epoch, for this draw. It is the same for any number of workers
  /// and ranks.
  RandomStream random() const {
    return RandomStream(is_first_draw() ? hash_key(seed, epoch, index) : hash_key(seed, epoch, index, draw));
  }
};

/// Batch memory into which rows are written. The batch owns it. Fields are contiguous: row i of field f starts at
/// `data(f) + i * row_bytes(f)`. The memory is uninitialised: a dataset writes every byte of each requested row.
class BatchView {
 public:
  struct Field {
    std::byte* data;
    int64_t row_bytes;
  };
  BatchView(std::span<const Field> fields, int64_t rows, int64_t first = 0)
      : fields_(fields), rows_(rows), first_(first) {}

  int64_t rows() const { return rows_; }
  size_t num_fields() const { return fields_.size(); }
  int64_t row_bytes(size_t field) const { return fields_[field].row_bytes; }
  std::byte* data(size_t field) const { return fields_[field].data + first_ * fields_[field].row_bytes; }
  /// Row `row` of field `field` (in the order of Dataset::fields()) as T*. The size of T is not checked against the
  /// dtype.
  template <class T = std::byte>
  T* row(size_t field, int64_t row) const {
    return reinterpret_cast<T*>(fields_[field].data + (first_ + row) * fields_[field].row_bytes);
  }
  /// Returns rows [begin, begin + rows) of this view.
  BatchView slice(int64_t begin, int64_t rows) const { return BatchView(fields_, rows, first_ + begin); }
  /// Returns fields [begin, begin + count) of this view.
  BatchView fields(size_t begin, size_t count) const { return BatchView(fields_.subspan(begin, count), rows_, first_); }

 private:
  std::span<const Field> fields_;
  int64_t rows_;
  int64_t first_;
};

/// Returns rows by index. Implement `size`, `fields` and `get`; override `get_batch` for speed.
///
/// Threads: all workers share one dataset and call get and get_batch concurrently. Both are const; nothing is copied
/// per worker.
/// Errors: throw any type derived from std::exception. The Prefetcher names the row and applies `on_error`.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Number of rows; constant for the lifetime of the dataset.
  virtual int64_t size() const = 0;

  /// Fields of a row; constant for the lifetime of the dataset.
  virtual const std::vector<FieldSpec>& fields() const = 0;

  /// Writes row `key.index` (0 <= index < size()) at position `at` of `out`.
  virtual void get(const RowKey& key, const BatchView& out, int64_t at) const = 0;

  /// Writes row `keys[i]` at position i of `out`; out.rows() >= keys.size(). The default calls get for each row and
  /// prefetch a few rows ahead. The Prefetcher may request a batch in parts from several threads. If this function
  /// throws, the Prefetcher reads the rows again one by one with `get`.
  virtual void get_batch(std::span<const RowKey> keys, const BatchView& out) const;

  /// Hints that row `index` will be read soon. Touches its memory without waiting for it. Never throws.
  virtual void prefetch(int64_t index) const { (void)index; }

  /// Returns where row `index` is stored: a dataset and the index there. A dataset that wraps others returns the answer
  /// of the one that has the row. ConcatDataset finds rows that occur several times with it.
  virtual std::pair<const Dataset*, int64_t> source(int64_t index) const { return {this, index}; }
  /// Returns the datasets that `source` may name.
  virtual std::vector<const Dataset*> sources() const { return {this}; }

  /// Name of the row for messages, for example its file. If empty, messages give only the index.
  virtual std::string describe(int64_t index) const {
    (void)index;
    return {};
  }
};

/// Returns row `row` of field `field` of `view` as a tensor of spec.shape that shares its memory. Use it to write with
/// tensor operations: row_tensor(out, 0, fields()[0], at).copy_(image). Costs about one microsecond.
at::Tensor row_tensor(const BatchView& view, size_t field, const FieldSpec& spec, int64_t row);

}  // namespace trainkit
