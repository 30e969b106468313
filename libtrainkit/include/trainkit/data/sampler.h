#pragma once
/// In which order rows are visited: a pure function of (seed, epoch, position).

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace trainkit {

/// An order of rows. Stateless and const: any position of any epoch is reached at once, in O(1) memory per call, so a
/// run resumes in the middle of an epoch without replaying it. Threads: called from any number of threads at once.
class Sampler {
 public:
  virtual ~Sampler() = default;

  /// Positions in one epoch.
  virtual int64_t size() const = 0;

  /// Writes the row indices at positions [begin, begin + out.size()) of `epoch`. 0 <= begin, begin + out.size() <=
  /// size().
  virtual void fill(int64_t epoch, int64_t begin, std::span<int64_t> out) const = 0;

  /// Writes the row indices at positions begin, begin + stride, begin + 2 stride, ... of `epoch`; what
  /// DistributedSampler asks for. By default one call of fill per row.
  virtual void fill_strided(int64_t epoch, int64_t begin, int64_t stride, std::span<int64_t> out) const;

  /// The seed of the order, which RowKey passes on to random augmentation.
  virtual uint64_t seed() const { return 0; }

  /// Ranks that share this order: position p here stands for `world_size()` positions of the whole epoch.
  virtual int64_t world_size() const { return 1; }

  /// Positions of one epoch over all the ranks, each row once: what is repeated or left out does not count.
  virtual int64_t epoch_size() const { return size(); }

  /// Positions at the end of this rank's epoch that only repeat rows, so that all ranks have as many.
  virtual int64_t padding() const { return 0; }
};

/// 0, 1, 2, ... Source: torch.utils.data.SequentialSampler.
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

/// Every row once per epoch, in an order keyed by (seed, epoch). Takes O(1) memory at any size: the order is a
/// KeyedPermutation (data/permutation.h), not a shuffled list. About a nanosecond a row.
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

struct WeightedSamplerOptions {
  /// Draws per epoch; 0 draws as many as there are weights.
  int64_t num_samples = 0;
  uint64_t seed = 0;
};

/// Rows drawn with replacement, row i with probability weights[i] / sum(weights): class balancing. Draw p of an epoch
/// is a function of (seed, epoch, p). O(1) per draw and 16 bytes per row. Source:
/// torch.utils.data.WeightedRandomSampler(replacement=True); alias method, Vose 1991.
class WeightedSampler final : public Sampler {
 public:
  /// Throws c10::ValueError if a weight is negative or not finite, if all are 0, or if num_samples < 0.
  explicit WeightedSampler(std::span<const double> weights, WeightedSamplerOptions options = {});
  int64_t size() const override { return options_.num_samples; }
  void fill(int64_t epoch, int64_t begin, std::span<int64_t> out) const override;
  void fill_strided(int64_t epoch, int64_t begin, int64_t stride, std::span<int64_t> out) const override;
  uint64_t seed() const override { return options_.seed; }

 private:
  struct Column {
    double keep;    // probability of the column's own row
    int64_t alias;  // the row otherwise
  };
  std::vector<Column> columns_;
  WeightedSamplerOptions options_;
};

/// What becomes of the rows that are left when an epoch is not a multiple of the ranks.
enum class Tail {
  kDrop,  ///< Left out of this epoch, on every rank alike. For training.
  kPad,   ///< The last ranks repeat rows from the epoch's beginning, and say so: Sampler::padding, Batch::padding_rows.
  kUneven  ///< The first ranks have one row more. For evaluation without collective calls per batch.
};

struct DistributedSamplerOptions {
  int64_t rank = 0;
  int64_t world_size = 1;
  Tail tail = Tail::kDrop;
  /// Rows at the end of an epoch that do not fill so many are left out of it before it is shared. With the batch size
  /// here and Tail::kPad an epoch has the rows that drop_last leaves to one process, whatever the number of ranks.
  int64_t multiple_of = 1;
};

/// One rank's share of another sampler's order: rank r takes positions r, r + world_size, r + 2 world_size, ... so that
/// the ranks together walk through the same order for any world size, and step by step through the same rows where
/// batch_size * world_size is the same.
/// Source: torch.utils.data.DistributedSampler, which repeats rows without saying so unless drop_last is set.
class DistributedSampler final : public Sampler {
 public:
  /// Throws c10::ValueError unless 0 <= rank < world_size and multiple_of >= 1, and if the sampler is null or
  /// distributed already.
  DistributedSampler(std::shared_ptr<const Sampler> sampler, DistributedSamplerOptions options);
  template <class S>
  requires std::is_base_of_v<Sampler, S> DistributedSampler(S sampler, DistributedSamplerOptions options)
      : DistributedSampler(std::shared_ptr<const Sampler>(std::make_shared<S>(std::move(sampler))), options) {}

  int64_t size() const override { return size_; }
  void fill(int64_t epoch, int64_t begin, std::span<int64_t> out) const override;
  void fill_strided(int64_t epoch, int64_t begin, int64_t stride, std::span<int64_t> out) const override;
  uint64_t seed() const override { return sampler_->seed(); }
  int64_t world_size() const override { return options_.world_size; }
  int64_t epoch_size() const override { return rows_; }
  int64_t padding() const override { return padding_; }

 private:
  std::shared_ptr<const Sampler> sampler_;
  DistributedSamplerOptions options_;
  int64_t rows_ = 0;  // of the epoch, over all ranks
  int64_t size_ = 0;
  int64_t padding_ = 0;
};

}  // namespace trainkit
