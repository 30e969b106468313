#pragma once
// Sums sparse gradients over ranks.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/time_sum.h"
#include "distributed/replicas/rank_reduction.h"

namespace trainkit::detail {

// Note [Sums of rows]
// ~~~~~~~~~~~~~~~~~~~
// Each rank sends the rows of its sparse gradients, after the dense ones, and adds those of all ranks in their order:
// the cost follows the rows of the batch, and every rank gets the same bits. First the ranks tell each other their
// numbers of rows; -1 means no gradient. Parts of an all-gather have one size, so a part has room for the most rows. A
// rank that failed sends no rows. A failure in between would leave the others in a collective: then this rank leaves
// the group.

/// Reduces the sparse gradients of some parameters by themselves, and passes the others on.
class SparseSums final : public GradientSums {
 public:
  using Parameters = std::vector<std::pair<std::string, at::Tensor>>;
  /// @param dense sums the gradients of the other parameters; null if there are none. Keeps the references.
  SparseSums(ProcessGroup& group, Parameters sparse, std::unique_ptr<GradientSums> dense,
             const DeviceReplicatorOptions& options, TimeSum& time);

  void begin() override;
  void arrange() override;
  void run(const DeviceReplicator::Body& body, const Run& run) override;
  void complete(bool contribute, bool records_order) override;
  bool is_complete() const override { return has_sent_; }
  void throw_if_broken() override;
  void abandon(bool reduced) override;
  void rearrange() override;
  void forget_sent() override;

 private:
  void sum(bool contribute);
  void exchange(const std::vector<at::Tensor>& own, bool contribute);
  void gather(const at::Tensor& parts);
  at::Tensor gather_rows(size_t parameter, const at::Tensor& own, const std::vector<int64_t>& rows);

  ProcessGroup& group_;
  Parameters sparse_;
  std::unique_ptr<GradientSums> dense_;
  const DeviceReplicatorOptions& options_;
  TimeSum& time_;
  bool has_sent_ = false;  // in the reduction that begin() began
};

}  // namespace trainkit::detail
