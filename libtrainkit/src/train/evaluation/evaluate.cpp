#include "trainkit/train/evaluate.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/losses/counted_rows.h"
#include "train/losses/rank_means.h"
#include "train/losses/user_mistakes.h"
#include "train/losses/with_precision.h"
#include "trainkit/core/error.h"
#include "trainkit/core/evaluation_mode.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

/// Accumulates weighted sums on the device: of the loss, and of the metrics by name. Each has the weight of the batches
/// that returned it.
class Sums {
 public:
  void add(const LossOutput& output, double weight) {
    weight_ += weight;
    add_one(0, "loss", output.loss, weight, weight);
    for (size_t i = 0; i < output.metrics.size(); ++i) {
      const auto& [name, value] = output.metrics[i];
      check_new(name, output, i);
      add_one(i + 1, name, value, weight, weight);
    }
  }

  /// Adds the sums of another replica.
  void add(const Sums& other) {
    weight_ += other.weight_;
    for (size_t i = 0; i < other.sums_.size(); ++i) {
      add_one(i, other.sums_[i].name, other.sums_[i].sum, 1.0, other.sums_[i].weight);
    }
  }

  /// Replaces the sums with those over all ranks. An all-reduce needs tensors of equal size, so ranks that have other
  /// metrics, or none because they could read no row, first exchange the names. If the evaluation has failed on a rank,
  /// all ranks return an error.
  absl::Status add_other_ranks(ProcessGroup& group, at::Device device, bool has_failed) {
    const double digest = digest_of_names();
    const at::Tensor checks = at::tensor({digest, -digest, has_failed ? group.rank() + 1.0 : 0.0}, at::kDouble);
    TRAINKIT_RETURN_IF_ERROR(group.all_reduce_max(checks, "the evaluation's metrics"));
    if (const auto failed = checks[2].item<double>(); failed > 0) {
      return to_status({.exit_code = ExitCode::kDistributed,
                        .id = "dist.peer",
                        .problem = "rank " + std::to_string(static_cast<int64_t>(failed) - 1) +
                                   " failed in the evaluation; see its error"});
    }
    if (checks[0].item<double>() != -checks[1].item<double>()) TRAINKIT_RETURN_IF_ERROR(share_names(group, device));
    if (sums_.empty()) return absl::OkStatus();  // no rank could read a row
    std::vector<at::Tensor> values;
    std::vector<double> weights{weight_};
    for (const Sum& one : sums_) {
      values.push_back(one.sum);
      weights.push_back(one.weight);
    }
    const at::Tensor all = at::cat({at::stack(values), at::tensor(weights, at::kDouble).to(device)});
    TRAINKIT_RETURN_IF_ERROR(group.all_reduce(all, "the evaluation's sums"));
    const at::Tensor host = all.cpu();
    const auto count = std::ssize(sums_);
    for (int64_t i = 0; i < count; ++i) {
      sums_[static_cast<size_t>(i)].sum = host[i];
      sums_[static_cast<size_t>(i)].weight = host[count + 1 + i].item<double>();
    }
    weight_ = host[count].item<double>();
    return absl::OkStatus();
  }

  double weight() const { return weight_; }
  /// Leaves out a metric of which nothing counted.
  Metrics means() const {
    Metrics metrics;
    for (const Sum& one : sums_) {
      if (one.weight > 0) metrics[one.name] = one.sum.item<double>() / one.weight;
    }
    return metrics;
  }

 private:
  struct Sum {
    std::string name;
    at::Tensor sum;  // float64
    double weight = 0;
  };

  /// Returns a number that differs for other names or another order; 0 without names.
  double digest_of_names() const {
    std::string names;
    for (const Sum& one : sums_) names += one.name + "\n";
    return names.empty() ? 0 : static_cast<double>(std::hash<std::string>()(names) >> 12) + 1;
  }

  /// Gives all ranks the names of all, in one order.
  absl::Status share_names(ProcessGroup& group, at::Device device) {
    std::vector<std::string> own, names;
    for (const Sum& one : sums_) own.push_back(one.name);
    TRAINKIT_RETURN_IF_ERROR(detail::add_names_of_ranks(group, own, names, "broadcast"));
    std::vector<Sum> all;
    for (const std::string& name : names) {
      const auto mine = std::find_if(sums_.begin(), sums_.end(), [&](const Sum& one) { return one.name == name; });
      all.push_back(mine != sums_.end() ? *mine : Sum{name, at::zeros({}, at::device(device).dtype(at::kDouble))});
    }
    sums_ = std::move(all);
    return absl::OkStatus();
  }

  /// Refuses a second metric of the same name in one output: Metrics could hold only one of them.
  static void check_new(const std::string& name, const LossOutput& output, size_t at) {
    bool is_known = name == "loss";
    for (size_t i = 0; i < at; ++i) is_known |= output.metrics[i].first == name;
    if (!is_known) return;
    throw absl::BadStatusOrAccess(to_status({.exit_code = ExitCode::kData,
                                             .id = "data.metrics",
                                             .problem = "two metrics have the same name",
                                             .got = name,
                                             .expected = "different names, none of them 'loss'"}));
  }

  /// Adds `value` times `factor`, which counts `weight`. A value of weight 0 adds only its name. `guess` is the place
  /// of the name in other outputs.
  void add_one(size_t guess, const std::string& name, const at::Tensor& value, double factor, double weight) {
    const auto is_named = [&](const Sum& one) { return one.name == name; };
    auto found = guess < sums_.size() && is_named(sums_[guess]) ? sums_.begin() + static_cast<ptrdiff_t>(guess)
                                                                : std::find_if(sums_.begin(), sums_.end(), is_named);
    if (found == sums_.end()) {
      const auto options = value.options().dtype(at::kDouble).requires_grad(false);
      sums_.push_back({.name = name, .sum = at::zeros({}, options)});
      found = std::prev(sums_.end());
    }
    if (weight > 0) found->sum.add_(value.to(found->sum.options()).reshape({}), factor);
    found->weight += weight;
  }

  std::vector<Sum> sums_;
  double weight_ = 0;
};

/// Adds one replica's share of a batch.
void add_rows(torch::nn::Module& model, const Batch& rows, const LossFunction& loss, Sums& sums) {
  if (rows.size() == 0) return;
  const LossOutput output = loss(model, counted_rows(rows));
  detail::check_output(output, /*step=*/0);
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
  std::vector<std::unique_ptr<EvaluationMode>> modes;
  for (int64_t i = 0; i < replicas; ++i) modes.push_back(std::make_unique<EvaluationMode>(*devices.module(i)));
  const auto visit_rows = [&](int64_t replica, const Batch& rows) {
    const c10::NoGradGuard no_grad;
    detail::with_precision(devices, replica, precision, [&] { visit(replica, *devices.module(replica), rows); });
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
  const std::vector<const LossFunction*> losses = loss.for_replicas(devices.replicas());
  ProcessGroup* group = devices.process_group();
  try {
    const auto visit = [&](int64_t replica, torch::nn::Module& model, const Batch& rows) {
      const auto i = static_cast<size_t>(replica);
      add_rows(model, rows, *losses[i], sums[i]);
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
