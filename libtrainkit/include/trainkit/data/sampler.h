#pragma once
/// In which order rows are visited: a pure function of (seed, epoch, position).

#include <cstdint>
#include <memory>
#include <span>

namespace trainkit {

/// An order of rows. Stateless and const: any position of any epoch costs O(1) memory and is reached at once, so a run
/// resumes in the middle of an epoch without replaying it. Threads: called from any number of threads at once.
class Sampler {
 public:
  virtual ~Sampler() = default;

  /// Positions in one epoch.
  virtual int64_t size() const = 0;

  /// Writes the row indices at positions [begin, begin + out.size()) of `epoch`. 0 <= begin, begin + out.size() <= size().
  virtual void fill(int64_t epoch, int64_t begin, std::span<int64_t> out) const = 0;

  /// The seed of the order, which RowKey passes on to random augmentation.
  virtual uint64_t seed() const { return 0; }
};

/// 0, 1, 2, ... Source: torch.utils.data.SequentialSampler.
class SequentialSampler final : public Sampler {
 public:
  explicit SequentialSampler(int64_t size);
  int64_t size() const override { return size_; }
  void fill(int64_t epoch, int64_t begin, std::span<int64_t> out) const override;

 private:
  int64_t size_;
};

struct RandomSamplerOptions {
  uint64_t seed = 0;
};

/// Every row once per epoch, in an order keyed by (seed, epoch). Takes O(1) memory at any size: the order is a keyed
/// permutation (a balanced Feistel network with cycle walking), not a shuffled list.
class RandomSampler final : public Sampler {
 public:
  explicit RandomSampler(int64_t size, RandomSamplerOptions options = {});
  int64_t size() const override { return size_; }
  void fill(int64_t epoch, int64_t begin, std::span<int64_t> out) const override;
  uint64_t seed() const override { return options_.seed; }

 private:
  int64_t size_;
  RandomSamplerOptions options_;
};

}  // namespace trainkit
