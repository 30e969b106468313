#include "trainkit/train/evaluate.h"

#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <c10/core/GradMode.h>

#include <memory>
#include <optional>
#include <vector>

#include "counted_rows.h"
#include "nn/evaluation_mode.h"
#include "trainkit/amp/autocast.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

/// Accumulates weighted sums on the device. A value of weight 0 adds only its name.
class Sums {
 public:
  void add(const LossOutput& output, double weight) {
    weight_ += weight;
    add_one(0, "loss", output.loss, weight);
    for (size_t i = 0; i < output.metrics.size(); ++i) {
      add_one(i + 1, output.metrics[i].first, output.metrics[i].second, weight);
    }
  }

  /// Adds the sums of another replica.
  void add(const Sums& other) {
    weight_ += other.weight_;
    for (size_t i = 0; i < other.sums_.size(); ++i) add_one(i, other.sums_[i].first, other.sums_[i].second, 1.0);
  }

  /// Replaces the sums with those over all ranks. First compares the number of metrics (its maximum with its minimum
  /// over the ranks), since an all-reduce needs tensors of equal size. A rank that could read no row learns the metrics
  /// from another one. If the evaluation has failed on a rank, all ranks return an error.
  absl::Status add_other_ranks(ProcessGroup& group, at::Device device, bool has_failed) {
    const double count = sums_.empty() ? -1 : static_cast<double>(sums_.size());
    const double names = sums_.empty() ? -1 : static_cast<double>(group.rank());
    const at::Tensor counts = at::tensor(
        {count, sums_.empty() ? -1e9 : -count, has_failed ? group.rank() + 1.0 : 0.0, names, sums_.empty() ? 1.0 : 0.0},
        at::kDouble);
    TRAINKIT_RETURN_IF_ERROR(group.all_reduce_max(counts, "the evaluation's metrics"));
    if (const auto failed = counts[2].item<double>(); failed > 0) {
      return to_status({.exit_code = ExitCode::kDistributed,
                        .id = "dist.peer",
                        .problem = "rank " + std::to_string(static_cast<int64_t>(failed) - 1) +
                                   " failed in the evaluation; see its error"});
    }
    const auto root = static_cast<int64_t>(counts[3].item<double>());
    if (root < 0) return absl::OkStatus();  // no rank could read a row
    if (counts[0].item<double>() != -counts[1].item<double>()) {
      return to_status({.exit_code = ExitCode::kData,
                        .id = "data.metrics",
                        .problem = "ranks return different metrics",
                        .got = std::to_string(sums_.size()) + " here"});
    }
    if (counts[4].item<double>() > 0) TRAINKIT_RETURN_IF_ERROR(share_names(group, root, device));
    std::vector<at::Tensor> values;
    for (const auto& [name, sum] : sums_) values.push_back(sum);
    values.push_back(at::full_like(values.front(), weight_));
    const at::Tensor all = at::stack(values);
    TRAINKIT_RETURN_IF_ERROR(group.all_reduce(all, "the evaluation's sums"));
    const at::Tensor host = all.cpu();
    for (size_t i = 0; i < sums_.size(); ++i) sums_[i].second = host[static_cast<int64_t>(i)];
    weight_ = host[-1].item<double>();
    return absl::OkStatus();
  }

  double weight() const { return weight_; }
  Metrics means() const {
    Metrics metrics;
    for (const auto& [name, sum] : sums_) metrics[name] = sum.item<double>() / weight_;
    return metrics;
  }

 private:
  /// Sends the names of the metrics to the ranks that have none.
  absl::Status share_names(ProcessGroup& group, int64_t root, at::Device device) {
    std::vector<std::string> names;
    for (const auto& [name, sum] : sums_) names.push_back(name);
    TRAINKIT_ASSIGN_OR_RETURN(const std::string text, group.broadcast_text(absl::StrJoin(names, "\n"), root));
    if (!sums_.empty()) return absl::OkStatus();
    for (const absl::string_view name : absl::StrSplit(text, '\n')) {
      sums_.emplace_back(name, at::zeros({}, at::device(device).dtype(at::kDouble)));
    }
    return absl::OkStatus();
  }

  /// Refuses a second metric of the same name: Metrics could hold only one of them.
  void check_new(const std::string& name) const {
    for (const auto& [known, sum] : sums_) {
      if (known != name) continue;
      throw absl::BadStatusOrAccess(to_status({.exit_code = ExitCode::kData,
                                               .id = "data.metrics",
                                               .problem = "two metrics have the same name",
                                               .got = name,
                                               .expected = "different names, none of them 'loss'"}));
    }
  }

  void add_one(size_t at, const std::string& name, const at::Tensor& value, double weight) {
    if (sums_.size() == at) {
      check_new(name);
      sums_.emplace_back(name, at::zeros({}, value.options().dtype(at::kDouble).requires_grad(false)));
    }
    TORCH_CHECK(at < sums_.size() && sums_[at].first == name, "metric '", name, "' is not returned for every batch");
    if (weight > 0) sums_[at].second.add_(value.to(sums_[at].second.options()), weight);
  }

  std::vector<std::pair<std::string, at::Tensor>> sums_;
  double weight_ = 0;
};

/// Adds one replica's share of a batch.
void add_rows(torch::nn::Module& model, const Batch& rows, const LossFunction& loss, Sums& sums) {
  if (rows.size() == 0) return;
  const LossOutput output = loss(model, counted_rows(rows));
  sums.add(output, counted_weight(rows, output));
}

}  // namespace

absl::Status for_each_batch(
    DeviceReplicator& devices, Prefetcher& loader, Precision precision,
    const std::function<void(int64_t replica, torch::nn::Module& model, const Batch& rows)>& visit,
    const EvaluationProgress& on_progress) {
  const int64_t replicas = devices.replicas();
  try {
    const c10::NoGradGuard no_grad;
    devices.synchronize_buffers();
  } catch (const absl::BadStatusOrAccess& error) {
    return error.status();
  }
  std::vector<std::unique_ptr<detail::EvaluationMode>> modes;
  for (int64_t i = 0; i < replicas; ++i) modes.push_back(std::make_unique<detail::EvaluationMode>(*devices.module(i)));
  const auto visit_rows = [&](int64_t replica, const Batch& rows) {
    const c10::NoGradGuard no_grad;
    std::optional<AutocastGuard> autocast;
    if (precision != Precision::kFp32) {
      autocast.emplace(devices.device(replica), precision == Precision::kBf16 ? at::kBFloat16 : at::kHalf);
    }
    visit(replica, *devices.module(replica), rows);
  };
  const auto visit_share = [&](int64_t replica, const Batch& batch) {
    const c10::NoGradGuard no_grad;
    visit_rows(replica, batch.shard(replica, replicas, devices.device(replica)));
    return at::Tensor();
  };
  loader.seek(0, 0);
  for (int64_t done = 1;; ++done) {
    TRAINKIT_ASSIGN_OR_RETURN(const std::optional<Batch> batch, loader.next());
    if (!batch) return absl::OkStatus();
    if (replicas == 1) {
      visit_rows(0, batch->shard(0, 1, devices.device()));
    } else {
      devices.run([&](int64_t replica) { return visit_share(replica, *batch); }, /*reduce_gradients=*/false);
    }
    if (on_progress) on_progress(done, loader.batches_per_epoch());
  }
}

absl::StatusOr<Metrics> evaluate(DeviceReplicator& devices, Prefetcher& loader, const LossFunction& loss,
                                 Precision precision, const EvaluationProgress& on_progress) {
  const c10::NoGradGuard no_grad;
  const auto replicas = static_cast<size_t>(devices.replicas());
  std::vector<Sums> sums(replicas);
  // A loss function may keep state between calls, so each replica's thread gets its own copy.
  std::vector<LossFunction> losses(replicas, loss);
  ProcessGroup* group = devices.process_group();
  try {
    const auto visit = [&](int64_t replica, torch::nn::Module& model, const Batch& rows) {
      const auto i = static_cast<size_t>(replica);
      add_rows(model, rows, losses[i], sums[i]);
    };
    const absl::Status read = for_each_batch(devices, loader, precision, visit, on_progress);
    if (!read.ok()) throw absl::BadStatusOrAccess(read);
    for (size_t i = 1; i < replicas; ++i) sums[0].add(sums[i]);
  } catch (const absl::BadStatusOrAccess& error) {
    if (group) sums[0].add_other_ranks(*group, devices.device(), /*has_failed=*/true).IgnoreError();
    return error.status();
  } catch (...) {
    if (group) sums[0].add_other_ranks(*group, devices.device(), /*has_failed=*/true).IgnoreError();
    throw;
  }
  if (group) TRAINKIT_RETURN_IF_ERROR(sums[0].add_other_ranks(*group, devices.device(), /*has_failed=*/false));
  if (sums[0].weight() == 0) {
    return to_status(
        {.exit_code = ExitCode::kData, .id = "data.empty", .problem = "no rows to evaluate, or none that count"},
        absl::StatusCode::kInvalidArgument);
  }
  return sums[0].means();
}

}  // namespace trainkit
