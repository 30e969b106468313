#pragma once
/// The order of rows: a pure function of (seed, epoch, position).

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace trainkit {

/// Defines an order of rows. Stateless and const: any position of any epoch can be computed directly, in O(1) memory
/// per call. A run therefore resumes in the middle of an epoch without replaying it. Threads: any number, concurrently.
class Sampler {
 public:
  virtual ~Sampler() = default;

  /// Number of positions in one epoch; constant for the lifetime of the sampler.
  virtual int64_t size() const = 0;

  /// Writes the row indices at positions [begin, begin + out.size()) of `epoch`.
  /// Requires 0 <= begin and begin + out.size() <= size().
  virtual void fill(int64_t epoch, int64_t begin, std::span<int64_t> out) const = 0;

  /// Writes the row indices at positions begin, begin + stride, begin + 2 stride, ... of `epoch`. DistributedSampler
  /// uses it. The default calls fill once per row.
  virtual void fill_strided(int64_t epoch, int64_t begin, int64_t stride, std::span<int64_t> out) const;

  /// Seed of the order. RowKey passes it on to random augmentation.
  virtual uint64_t seed() const { return 0; }

  /// Number of the draw at `position`, which RowKey passes on to random augmentation: 0 if an epoch visits each row
  /// once. A sampler that draws a row repeatedly returns another number for each draw, so that augmentations differ.
  virtual int64_t draw(int64_t position) const {
    (void)position;
    return 0;
  }

  /// Number of ranks that share this order. Position p of one rank corresponds to `world_size()` positions of the
  /// epoch.
  virtual int64_t world_size() const { return 1; }

  /// Number of positions of one epoch over all ranks. Duplicated and dropped rows are not counted.
  virtual int64_t epoch_size() const { return size(); }

  /// Number of positions at the end of this rank's epoch that duplicate rows, so that all ranks have equally many.
  virtual int64_t padding() const { return 0; }
};

/// Visits rows as 0, 1, 2, ... Source: torch.utils.data.SequentialSampler.
class SequentialSampler final : public Sampler {
 public:
  /// Throws c10::ValueError if size < 0.
  explicit SequentialSampler(int64_t size);
  int64_t size() const override { return size_; }
  void fill(int64_t epoch, int64_t begin, std::span<int64_t> out) const override;
  void fill_strided(int64_t epoch, int64_t begin, int64_t stride, std::span<int64_t> out) const override;

 private:
  int64_t size_;
};

struct RandomSamplerOptions {
  uint64_t seed = 0;
};

/// Visits every row once per epoch, in an order keyed by (seed, epoch). Takes O(1) memory at any size: the order is a
/// KeyedPermutation (src/data/order/permutation.h), not a shuffled list. Costs about one nanosecond per row.
class RandomSampler final : public Sampler {
 public:
  /// Throws c10::ValueError if size < 0.
  explicit RandomSampler(int64_t size, RandomSamplerOptions options = {});
  int64_t size() const override { return size_; }
  void fill(int64_t epoch, int64_t begin, std::span<int64_t> out) const override;
  void fill_strided(int64_t epoch, int64_t begin, int64_t stride, std::span<int64_t> out) const override;
  uint64_t seed() const override { return options_.seed; }

 private:
  int64_t size_;
  RandomSamplerOptions options_;
};

struct WeightedRandomSamplerOptions {
  /// Draws per epoch; 0 means one per weight.
  int64_t num_samples = 0;
  uint64_t seed = 0;
};

/// Draws rows with replacement, row i with probability weights[i] / sum(weights), for example for class balancing. Draw
/// p of an epoch is a pure function of (seed, epoch, p). O(1) per draw and 16 bytes per row. Source:
/// torch.utils.data.WeightedRandomSampler(replacement=True); alias method, Vose 1991.
class WeightedRandomSampler final : public Sampler {
 public:
  /// Throws c10::ValueError if a weight is negative or not finite, if all weights are 0, if their sum overflows, or if
  /// num_samples < 0.
  explicit WeightedRandomSampler(std::span<const double> weights, WeightedRandomSamplerOptions options = {});
  /// Same, for a list: WeightedRandomSampler({0.1, 0.9}, {.num_samples = 1000}).
  explicit WeightedRandomSampler(std::initializer_list<double> weights, WeightedRandomSamplerOptions options = {})
      : WeightedRandomSampler(std::span<const double>(weights.begin(), weights.size()), options) {}
  int64_t size() const override { return options_.num_samples; }
  void fill(int64_t epoch, int64_t begin, std::span<int64_t> out) const override;
  void fill_strided(int64_t epoch, int64_t begin, int64_t stride, std::span<int64_t> out) const override;
  uint64_t seed() const override { return options_.seed; }
  int64_t draw(int64_t position) const override { return position + 1; }

 private:
  struct Column {
    double keep;    // probability of this column's row
    int64_t alias;  // row drawn otherwise
  };
  std::vector<Column> columns_;
  WeightedRandomSamplerOptions options_;
};

/// Mixes the rows of several datasets, which a ConcatDataset joins. `sizes` are their rows in its order. Each epoch has
/// `options.num_samples` positions, or by default as many as there are rows. Dataset i gets the share weights[i] /
/// sum(weights) of them, rounded to rows, in shuffled order. A small dataset is repeated within an epoch, a large one
/// continues in the next: at the end of each epoch, the rows of a dataset have been shown equally often or once more.
/// Within an epoch a row may come again before another one has come. The row at a position is a pure function of (seed,
/// epoch, position), in O(log n) time for n datasets. Throws c10::ValueError for a dataset without rows, and for a
/// weight that is not finite and > 0.
std::shared_ptr<const Sampler> mixture_sampler(std::span<const int64_t> sizes, std::span<const double> weights,
                                               WeightedRandomSamplerOptions options = {});

/// How the remaining rows are handled if an epoch is not a multiple of the world size.
enum class UnevenTail {
  kDrop,   ///< Dropped for this epoch, on every rank. For training.
  kPad,    ///< The last ranks repeat rows from the start of the epoch; see Sampler::padding and Batch::padding_rows.
  kUneven  ///< The first ranks get one more row. For evaluation without collective calls per batch.
};

struct DistributedSamplerOptions {
  int64_t rank = 0;
  int64_t world_size = 1;
  UnevenTail tail = UnevenTail::kDrop;
  /// Rows at the end of an epoch that do not fill a multiple of this number are dropped before the epoch is shared. Set
  /// to the batch size with UnevenTail::kPad, an epoch has the rows that one process with drop_last reads, for any
  /// number of ranks.
  int64_t multiple_of = 1;
};

/// Selects one rank's share of another sampler's order: rank r takes positions r, r + world_size, r + 2 world_size, ...
/// All ranks together visit the same order for any world size. If batch_size * world_size is equal, they also visit the
/// same rows in each step.
/// Source: torch.utils.data.DistributedSampler, which repeats rows without reporting it unless drop_last is set.
class DistributedSampler final : public Sampler {
 public:
  /// Throws c10::ValueError unless 0 <= rank < world_size and multiple_of >= 1, and if the sampler is null or already
  /// distributed.
  DistributedSampler(std::shared_ptr<const Sampler> sampler, DistributedSamplerOptions options);
  template <class S>
  requires std::is_base_of_v<Sampler, S> DistributedSampler(S sampler, DistributedSamplerOptions options)
      : DistributedSampler(std::shared_ptr<const Sampler>(std::make_shared<S>(std::move(sampler))), options) {}

  int64_t size() const override { return size_; }
  void fill(int64_t epoch, int64_t begin, std::span<int64_t> out) const override;
  void fill_strided(int64_t epoch, int64_t begin, int64_t stride, std::span<int64_t> out) const override;
  uint64_t seed() const override { return sampler_->seed(); }
  int64_t draw(int64_t position) const override;
  int64_t world_size() const override { return options_.world_size; }
  int64_t epoch_size() const override { return rows_; }
  int64_t padding() const override { return padding_; }

 private:
  int64_t whole_position(int64_t position) const;

  std::shared_ptr<const Sampler> sampler_;
  DistributedSamplerOptions options_;
  int64_t rows_ = 0;  // rows of the epoch, over all ranks
  int64_t size_ = 0;
  int64_t padding_ = 0;
};

}  // namespace trainkit
