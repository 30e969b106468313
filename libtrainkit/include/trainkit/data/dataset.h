#pragma once
/// What can be trained on: rows, each made of the same named fields.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trainkit/core/random.h"

namespace trainkit {

/// One field of a row, declared once per dataset.
struct FieldSpec {
  std::string name = {};
  at::ScalarType dtype = at::kFloat;
  /// Shape of one row, without the batch dimension; {} is a scalar. A batch of N rows has shape (N, shape...).
  /// A field of variable length declares its bound here and its true length in another field (int64, shape {}).
  std::vector<int64_t> shape = {};

  /// Bytes of one row of this field.
  int64_t row_bytes() const;
  friend bool operator==(const FieldSpec&, const FieldSpec&) = default;
  /// "image: Float [3, 32, 32]"
  friend std::ostream& operator<<(std::ostream& out, const FieldSpec& field);
};

/// Which row is wanted, and what its random augmentation is a function of.
struct RowKey {
  int64_t index = 0;
  int64_t epoch = 0;
  uint64_t seed = 0;
  /// The row of the outermost dataset that this key was made for. A dataset that wraps another one copies the key and
  /// changes `index` alone, so that a message names the row that the user knows.
  int64_t origin = -1;

  /// The generator of this row in this epoch: the same for any number of workers and ranks.
  RandomStream random() const { return RandomStream(hash_key(seed, epoch, index)); }
};

/// Memory of a batch that rows are written into, owned by the batch. Contiguous: row i of field f starts at
/// `data(f) + i * row_bytes(f)`. Uninitialised: a dataset writes every byte of the rows it is asked for.
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
  /// Row `row` of field `field` (in the order of Dataset::fields()) as T*. T's size is not checked against the dtype.
  template <class T = std::byte>
  T* row(size_t field, int64_t row) const {
    return reinterpret_cast<T*>(fields_[field].data + (first_ + row) * fields_[field].row_bytes);
  }
  /// Rows [begin, begin + rows) of this view.
  BatchView slice(int64_t begin, int64_t rows) const { return BatchView(fields_, rows, first_ + begin); }

 private:
  std::span<const Field> fields_;
  int64_t rows_;
  int64_t first_;
};

/// Rows by index. Implement `size`, `fields`, and `get` or, for speed, `get_batch`.
///
/// Threads: get and get_batch are const and are called from every worker at once. One dataset is shared by all workers;
/// nothing is copied per worker.
/// Errors: throw anything derived from std::exception; the Prefetcher names the row and applies `on_error`.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Rows, constant for the life of the dataset.
  virtual int64_t size() const = 0;

  /// The fields of a row, constant for the life of the dataset.
  virtual const std::vector<FieldSpec>& fields() const = 0;

  /// Writes row `key.index` (0 <= index < size()) at position `at` of `out`.
  virtual void get(const RowKey& key, const BatchView& out, int64_t at) const = 0;

  /// Writes rows `keys[i]` at positions i of `out`; out.rows() >= keys.size(). By default one get after another,
  /// with prefetch called a few rows ahead. The Prefetcher may ask for a batch in parts, from several threads. When
  /// it throws, the Prefetcher reads the rows again one by one with `get`.
  virtual void get_batch(std::span<const RowKey> keys, const BatchView& out) const;

  /// A hint that row `index` is read soon: touch its memory without waiting for it. Never throws.
  virtual void prefetch(int64_t index) const { (void)index; }

  /// What a row is called in messages, for example its file; empty: the index alone is named.
  virtual std::string describe(int64_t index) const {
    (void)index;
    return {};
  }
};

/// Row `row` of field `field` of `view` as a tensor of spec.shape that shares its memory, for code that would rather
/// write with tensors: row_tensor(out, 0, fields()[0], at).copy_(image). Costs about a microsecond.
at::Tensor row_tensor(const BatchView& view, size_t field, const FieldSpec& spec, int64_t row);

/// Index of the field called `name`. Throws c10::IndexError that lists the fields if there is none.
size_t field_index(const Dataset& dataset, const std::string& name);

}  // namespace trainkit
