#pragma once
// Where the parameters of a divided training state lie, and which numbers are each rank's. Computes only.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trainkit::detail {

/// Place of the parameters in one bucket.
struct ShardedBucket {
  std::vector<size_t> parameters;  // indices
  std::vector<int64_t> begins;     // of each of them, in elements
  int64_t part = 0;                // elements per rank
};

/// Divides `parameters` into buckets for `ranks`. No part cuts a parameter with `is_whole`.
std::vector<ShardedBucket> divide_parameters(const std::vector<at::Tensor>& parameters,
                                             const std::vector<char>& is_whole, int64_t ranks, int64_t first_bytes,
                                             int64_t bucket_bytes);

/// Parameters are numbered as in the constructor, which is the same on all ranks. Immutable.
class ShardLayout {
 public:
  struct Options {
    int64_t rank = 0;
    int64_t ranks = 1;
    int64_t first_bytes = 0;   // DeviceReplicatorOptions::first_bucket_bytes
    int64_t bucket_bytes = 0;  // the same
  };
  /// @param shapes Meta tensors with the sizes, strides and dtypes of the parameters, dense and without overlap.
  /// @param is_whole By parameter: whether no rank may get only a part of it.
  ShardLayout(std::vector<at::Tensor> shapes, std::vector<char> is_whole, const Options& options);

  int64_t rank() const { return options_.rank; }
  int64_t ranks() const { return options_.ranks; }
  size_t parameters() const { return shapes_.size(); }
  const at::Tensor& shape(size_t parameter) const { return shapes_.at(parameter); }
  const std::vector<ShardedBucket>& buckets() const { return buckets_; }
  size_t bucket_of(size_t parameter) const { return places_.at(parameter).bucket; }

  /// Elements of a bucket's buffer: one part per rank.
  int64_t elements(size_t bucket) const { return options_.ranks * buckets_[bucket].part; }
  /// This rank's part of a buffer of the bucket.
  at::Tensor own_part(size_t bucket, const at::Tensor& buffer) const;
  /// The parameter in a buffer of its bucket: a view of its sizes and strides.
  at::Tensor view(size_t parameter, const at::Tensor& buffer) const;
  /// The numbers of the parameter in `own`, this rank's part of a buffer: a 1-D view, or with is_whole of the
  /// parameter's dimensions; with 0 elements if there are none.
  at::Tensor cut(size_t parameter, const at::Tensor& own) const;

  /// Divides the parameter's elements in the order of its memory: rank r has [cuts[r], cuts[r + 1]).
  std::vector<int64_t> cuts(size_t parameter) const;
  /// Returns whether the parameter's memory is row-major, as in a file: each rank's part is then one range of the file.
  bool is_row_major(size_t parameter) const { return shape(parameter).is_contiguous(); }
  /// Returns whether `whole` has the parameter's shape.
  bool fits(size_t parameter, const at::Tensor& whole) const { return whole.sizes() == shape(parameter).sizes(); }
  /// This rank's numbers of `whole`, a tensor of the parameter's shape, copied, with the sizes of cut().
  at::Tensor part_of(size_t parameter, const at::Tensor& whole) const;
  /// Returns uninitialised host memory for a whole tensor of the parameter, in its strides.
  at::Tensor make_whole(size_t parameter, at::ScalarType type) const;
  /// Copies `numbers`, a tensor of the sizes of cut(), to their place in `whole`, which make_whole() returned.
  void put(size_t parameter, const at::Tensor& numbers, const at::Tensor& whole) const;

 private:
  struct Place {
    size_t bucket = 0;
    size_t position = 0;  // in it
  };
  int64_t first_number(size_t parameter, int64_t rank) const;
  std::vector<int64_t> sizes_of_whole(size_t parameter, int64_t elements) const;

  Options options_;
  std::vector<at::Tensor> shapes_;
  std::vector<char> is_whole_;
  std::vector<ShardedBucket> buckets_;
  std::vector<Place> places_;  // by parameter
};

/// Divides `parameters` into buckets for `ranks`. No part cuts a parameter with `is_whole`.
std::vector<ShardedBucket> divide_parameters(const std::vector<at::Tensor>& parameters,
                                             const std::vector<char>& is_whole, int64_t ranks, int64_t first_bytes,
                                             int64_t bucket_bytes);

}  // namespace trainkit::detail
