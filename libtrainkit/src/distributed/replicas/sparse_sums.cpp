#include "distributed/replicas/sparse_sums.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "core/tensors/coalesced.h"
#include "core/tensors/recorded.h"
#include "distributed/group/process_group_impl.h"
#include "distributed/group/wire_type.h"
#include "distributed/replicas/replica_tools.h"

namespace trainkit::detail {
namespace {

constexpr char kWhat[] = "all_gather(rows of sparse gradients)";

/// Returns a parameter's gradient, coalesced; undefined if there is none.
at::Tensor rows_of(const std::string& name, const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined()) return gradient;
  TORCH_CHECK_VALUE(gradient.is_sparse() && gradient.sparse_dim() == 1, "the gradient of '", name,
                    "' is not sparse by rows, although its layer has sparse gradients: build it with sparse(false)");
  return coalesced(gradient);
}

std::vector<int64_t> shape_of(const at::Tensor& parameter, int64_t rows) {
  std::vector<int64_t> shape = parameter.sizes().vec();
  shape.front() = rows;
  return shape;
}

}  // namespace

SparseSums::SparseSums(ProcessGroup& group, Parameters sparse, std::unique_ptr<GradientSums> dense,
                       const DeviceReplicatorOptions& options, TimeSum& time)
    : group_(group), sparse_(std::move(sparse)), dense_(std::move(dense)), options_(options), time_(time) {}

void SparseSums::begin() {
  has_sent_ = false;
  if (dense_) dense_->begin();
}

void SparseSums::arrange() {
  if (dense_) dense_->arrange();
}

void SparseSums::run(const DeviceReplicator::Body& body, const Run& run) {
  // The rows follow the last bucket, so this rank votes after them.
  if (dense_) {
    GradientSums::Run of_dense = run;
    of_dense.on_sent = nullptr;
    dense_->run(body, of_dense);
  } else if (const at::Tensor loss = body(0); loss.defined()) {
    run.backward(loss);
  }
  if (!run.reduces) return;
  if (dense_) dense_->throw_if_broken();
  sum(/*contribute=*/true);
}

void SparseSums::complete(bool contribute, bool records_order) {
  if (dense_) dense_->complete(contribute, records_order);
  sum(contribute);
}

void SparseSums::throw_if_broken() {
  if (dense_) dense_->throw_if_broken();
}

void SparseSums::abandon(bool reduced) {
  if (dense_) dense_->abandon(reduced);
}

void SparseSums::rearrange() {
  if (dense_) dense_->rearrange();
}

void SparseSums::forget_sent() {
  if (dense_) dense_->forget_sent();
}

/// See Note [Sums of rows].
void SparseSums::sum(bool contribute) {
  const c10::AutoGradMode no_grad(false);
  const ProfileStage stage("sum sparse gradients");
  const auto start = std::chrono::steady_clock::now();
  std::vector<at::Tensor> own(sparse_.size());
  for (size_t p = 0; contribute && p < sparse_.size(); ++p) own[p] = rows_of(sparse_[p].first, sparse_[p].second);
  has_sent_ = true;
  try {
    exchange(own, contribute);
  } catch (const std::exception& error) {
    group_.leave(error.what());
    throw;
  }
  time_.add_since(start);
}

void SparseSums::exchange(const std::vector<at::Tensor>& own, bool contribute) {
  const auto ranks = static_cast<size_t>(group_.world_size()), parameters = sparse_.size();
  const at::Tensor counts = at::empty({static_cast<int64_t>(ranks * parameters)}, at::kLong);
  auto* count = counts.mutable_data_ptr<int64_t>();
  for (size_t p = 0; p < parameters; ++p) {
    count[static_cast<size_t>(group_.rank()) * parameters + p] = own[p].defined() ? own[p]._nnz() : -1;
  }
  gather(counts);
  for (size_t p = 0; p < parameters; ++p) {
    std::vector<int64_t> rows;
    for (size_t r = 0; r < ranks; ++r) rows.push_back(count[r * parameters + p]);
    if (*std::max_element(rows.begin(), rows.end()) < 0) continue;
    at::Tensor sum = gather_rows(p, own[p], rows);
    if (contribute) sparse_[p].second.mutable_grad() = std::move(sum);
  }
}

/// Gathers the rows of one parameter: `rows[r]` of rank r.
at::Tensor SparseSums::gather_rows(size_t parameter, const at::Tensor& own, const std::vector<int64_t>& rows) {
  const at::Tensor& table = sparse_[parameter].second;
  const int64_t most = std::max<int64_t>(1, *std::max_element(rows.begin(), rows.end()));
  const auto ranks = static_cast<int64_t>(rows.size());
  const auto type = wire_type(options_.gradient_compression, table).value_or(table.scalar_type());
  const at::Tensor indices = at::zeros({ranks * most}, at::kLong);
  const at::Tensor values = at::zeros(shape_of(table, ranks * most), table.options().dtype(type).requires_grad(false));
  if (own.defined()) {
    indices.narrow(0, group_.rank() * most, own._nnz()).copy_(own._indices()[0]);
    values.narrow(0, group_.rank() * most, own._nnz()).copy_(own._values());
  }
  gather(indices);
  gather(values.view({-1}));
  std::vector<at::Tensor> all_indices, all_values;
  for (int64_t r = 0; r < ranks; ++r) {
    const int64_t some = std::max<int64_t>(0, rows[static_cast<size_t>(r)]);
    all_indices.push_back(indices.narrow(0, r * most, some));
    all_values.push_back(values.narrow(0, r * most, some));
  }
  return at::_sparse_coo_tensor_unsafe(at::cat(all_indices).unsqueeze(0), at::cat(all_values).to(table.scalar_type()),
                                       table.sizes())
      .coalesce();
}

/// Replaces the other ranks' parts of a tensor with one part per rank.
void SparseSums::gather(const at::Tensor& parts) {
  const auto started = std::chrono::steady_clock::now();
  ProcessGroup::Impl& ranks = group_.impl();
  ranks.at(kWhat);
  throw_status(ranks.wait(ranks.all_gather(parts), kWhat, started));
}

}  // namespace trainkit::detail
