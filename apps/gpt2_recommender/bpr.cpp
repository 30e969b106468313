#include "gpt2_recommender/bpr.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "trainkit/core/gpu_kernels.h"
#include "trainkit/core/vectorized.h"
#include "trainkit/nn/functional.h"

namespace trainkit::rec {
namespace {

// Note [BPR backward]
//
// A user or an item occurs in many triplets of a batch, so a loop over triplets that adds to the gradients would race,
// and atomic additions would make the sums depend on the order of the threads. So backward loops over rows of tables:
//
// 1. Forward keeps the slope of each triplet: the derivative of the loss by its margin. Backward multiplies it by the
//    upstream gradient.
// 2. Occurrences lists the triplets of each row by a counting sort, which keeps their order in the batch.
// 3. Each thread owns a range of rows. It clears a row and adds its triplets in that order. So every row is written
//    once, by one thread, in a fixed order, and rows without a triplet become zero without a separate pass.
//
// A sparse gradient has only the rows with triplets: step 2 sorts the triplets by their rows instead, and step 3 is the
// same, so that the values are.
constexpr int64_t kTripletGrain = 256;
constexpr int64_t kRowGrain = 512;
constexpr int64_t kLanes = 16;

/// Columns of the triplets of a batch, as the kernels read them.
struct TripletPointers {
  const int64_t* users;
  const int64_t* positives;
  const int64_t* negatives;
};

/// Computes margins[i] = user . (positive - negative) for triplets [begin, end). Sums in kLanes partial sums, which the
/// compiler keeps in vector registers, and then pairwise. The order of the additions is fixed.
TRAINKIT_VECTORIZED void add_margins(const float* user_table, const float* item_table, int64_t dim,
                                     TripletPointers rows, int64_t begin, int64_t end, float* margins) {
  for (int64_t i = begin; i < end; ++i) {
    const float* u = user_table + rows.users[i] * dim;
    const float* p = item_table + rows.positives[i] * dim;
    const float* n = item_table + rows.negatives[i] * dim;
    float lanes[kLanes] = {};
    int64_t k = 0;
    for (; k + kLanes <= dim; k += kLanes) {
      for (int64_t l = 0; l < kLanes; ++l) lanes[l] += u[k + l] * (p[k + l] - n[k + l]);
    }
    for (int64_t l = 0; k < dim; ++k, ++l) lanes[l] += u[k] * (p[k] - n[k]);
    for (int64_t width = kLanes / 2; width > 0; width /= 2) {
      for (int64_t l = 0; l < width; ++l) lanes[l] += lanes[l + width];
    }
    margins[i] = lanes[0];
  }
}

/// Lists the triplets that use each row of a table, in the order of the batch. Those of row r are entries[starts[r]] to
/// entries[starts[r + 1] - 1].
struct Occurrences {
  using Columns = std::initializer_list<const int64_t*>;

  Occurrences(Columns columns, int64_t count, int64_t rows) : starts(rows + 1) {
    for (const int64_t* column : columns) {
      for (int64_t i = 0; i < count; ++i) ++starts[column[i] + 1];
    }
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
    entries.resize(starts.back());
    std::vector<int32_t> next(starts.begin(), starts.end() - 1);
    int32_t entry = 0;
    for (const int64_t* column : columns) {
      for (int64_t i = 0; i < count; ++i) entries[next[column[i]]++] = entry++;
    }
  }

  /// Only of the rows that occur: r counts those, and `rows` are their numbers, below 2^32, in ascending order.
  Occurrences(Columns columns, int64_t count, std::vector<int64_t>& rows) {
    std::vector<uint64_t> sorted;  // row and entry in one number, which sorts faster than a pair
    sorted.reserve(columns.size() * static_cast<size_t>(count));
    for (const int64_t* column : columns) {
      for (int64_t i = 0; i < count; ++i) sorted.push_back(static_cast<uint64_t>(column[i]) << 32 | sorted.size());
    }
    std::sort(sorted.begin(), sorted.end());
    entries.reserve(sorted.size());
    for (const uint64_t one : sorted) {
      const auto row = static_cast<int64_t>(one >> 32);
      if (rows.empty() || rows.back() != row) {
        rows.push_back(row);
        starts.push_back(static_cast<int32_t>(entries.size()));
      }
      entries.push_back(static_cast<int32_t>(one));
    }
    starts.push_back(static_cast<int32_t>(entries.size()));
  }

  std::vector<int32_t> starts;
  std::vector<int32_t> entries;  // index of the triplet in its column, plus `count` in the second column (negatives)
};

/// Returns the sparse gradient of `table` with `values` in `rows`, ascending numbers.
at::Tensor sparse_gradient(const at::Tensor& table, const std::vector<int64_t>& rows, const at::Tensor& values) {
  const at::Tensor indices = at::empty({1, static_cast<int64_t>(rows.size())}, at::kLong);
  std::copy(rows.begin(), rows.end(), indices.mutable_data_ptr<int64_t>());
  return at::_sparse_coo_tensor_unsafe(indices, values, table.sizes(), table.options().layout(at::kSparse),
                                       /*is_coalesced=*/true);
}

/// Writes rows [begin, end) of the users' gradient: the sum of slope * (positive - negative).
TRAINKIT_VECTORIZED void add_user_rows(const float* item_table, int64_t dim, TripletPointers rows, const float* slopes,
                                       const int32_t* starts, const int32_t* entries, int64_t begin, int64_t end,
                                       float* gradient) {
  for (int64_t row = begin; row < end; ++row) {
    float* g = gradient + row * dim;
    for (int64_t k = 0; k < dim; ++k) g[k] = 0;
    for (int32_t at = starts[row]; at < starts[row + 1]; ++at) {
      const int32_t i = entries[at];
      const float* p = item_table + rows.positives[i] * dim;
      const float* n = item_table + rows.negatives[i] * dim;
      const float slope = slopes[i];
      for (int64_t k = 0; k < dim; ++k) g[k] += slope * (p[k] - n[k]);
    }
  }
}

/// Writes rows [begin, end) of the items' gradient: the sum of slope * user over positives minus that over negatives.
TRAINKIT_VECTORIZED void add_item_rows(const float* user_table, int64_t dim, TripletPointers rows, const float* slopes,
                                       int64_t count, const int32_t* starts, const int32_t* entries, int64_t begin,
                                       int64_t end, float* gradient) {
  for (int64_t row = begin; row < end; ++row) {
    float* g = gradient + row * dim;
    for (int64_t k = 0; k < dim; ++k) g[k] = 0;
    for (int32_t at = starts[row]; at < starts[row + 1]; ++at) {
      const bool negative = entries[at] >= count;
      const int64_t i = negative ? entries[at] - count : entries[at];
      const float* u = user_table + rows.users[i] * dim;
      const float slope = negative ? -slopes[i] : slopes[i];
      for (int64_t k = 0; k < dim; ++k) g[k] += slope * u[k];
    }
  }
}

TripletPointers pointers_of(const at::Tensor& users, const at::Tensor& positives, const at::Tensor& negatives) {
  return {users.const_data_ptr<int64_t>(), positives.const_data_ptr<int64_t>(), negatives.const_data_ptr<int64_t>()};
}

/// Returns log(1 + e^-margin) without overflow.
double softplus_of_minus(double margin) { return std::max(-margin, 0.0) + std::log1p(std::exp(-std::abs(margin))); }

/// The fused bpr_loss. See Note [BPR backward].
class FusedBprLoss final : public torch::autograd::Function<FusedBprLoss> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& user_table,
                            const at::Tensor& item_table, const at::Tensor& users, const at::Tensor& positives,
                            const at::Tensor& negatives, GradientBuffers* buffers, bool sparse) {
    const int64_t count = users.numel();
    const at::Tensor loss = at::empty({}, user_table.options()), slopes = at::empty({count}, user_table.options());
    auto* const slope = slopes.mutable_data_ptr<float>();
    const TripletPointers rows = pointers_of(users, positives, negatives);
    at::parallel_for(0, count, kTripletGrain, [&](int64_t begin, int64_t end) {
      add_margins(user_table.const_data_ptr<float>(), item_table.const_data_ptr<float>(), user_table.size(1), rows,
                  begin, end, slope);
    });
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double margin = slope[i];
      sum += softplus_of_minus(margin);
      slope[i] = static_cast<float>(-1 / ((1 + std::exp(margin)) * static_cast<double>(count)));
    }
    *loss.mutable_data_ptr<float>() = static_cast<float>(sum / static_cast<double>(count));
    context->save_for_backward({user_table, item_table, users, positives, negatives, slopes});
    context->saved_data["buffers"] = static_cast<int64_t>(reinterpret_cast<intptr_t>(buffers));
    context->saved_data["sparse"] = sparse;
    return loss;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    TORCH_CHECK_NOT_IMPLEMENTED(!c10::GradMode::is_enabled(), "bpr_loss has no second derivative");
    const auto saved = context->get_saved_variables();
    const at::Tensor &user_table = saved[0], &item_table = saved[1], &users = saved[2];
    const TripletPointers rows = pointers_of(users, saved[3], saved[4]);
    at::Tensor slopes = saved[5];  // derivative of the loss by each margin
    if (const float scale = grads[0].item<float>(); scale != 1) slopes = slopes * scale;
    const int64_t count = users.numel(), dim = user_table.size(1);
    const auto* const u = user_table.const_data_ptr<float>();
    const auto* const v = item_table.const_data_ptr<float>();
    const auto* const slope = slopes.const_data_ptr<float>();
    const auto add_users = [&](const Occurrences& of, const at::Tensor& gradient) {
      auto* out = gradient.mutable_data_ptr<float>();
      at::parallel_for(0, gradient.size(0), kRowGrain, [&](int64_t begin, int64_t end) {
        add_user_rows(v, dim, rows, slope, of.starts.data(), of.entries.data(), begin, end, out);
      });
      return gradient;
    };
    const auto add_items = [&](const Occurrences& of, const at::Tensor& gradient) {
      auto* out = gradient.mutable_data_ptr<float>();
      at::parallel_for(0, gradient.size(0), kRowGrain, [&](int64_t begin, int64_t end) {
        add_item_rows(u, dim, rows, slope, count, of.starts.data(), of.entries.data(), begin, end, out);
      });
      return gradient;
    };
    const at::Tensor none;
    if (!context->saved_data["sparse"].toBool()) {
      auto& buffers = *reinterpret_cast<GradientBuffers*>(context->saved_data["buffers"].toInt());
      const Occurrences of_user({rows.users}, count, user_table.size(0));
      const Occurrences of_item({rows.positives, rows.negatives}, count, item_table.size(0));
      return {add_users(of_user, buffers.take(user_table)),
              add_items(of_item, buffers.take(item_table)),
              none,
              none,
              none,
              none,
              none};
    }
    std::vector<int64_t> users_here, items_here;
    const Occurrences of_user({rows.users}, count, users_here);
    const Occurrences of_item({rows.positives, rows.negatives}, count, items_here);
    const auto rows_of = [&](const std::vector<int64_t>& here) {
      return at::empty({static_cast<int64_t>(here.size()), dim}, user_table.options());
    };
    return {sparse_gradient(user_table, users_here, add_users(of_user, rows_of(users_here))),
            sparse_gradient(item_table, items_here, add_items(of_item, rows_of(items_here))),
            none,
            none,
            none,
            none,
            none};
  }
};

bool has_fast_path(const at::Tensor& table, const at::Tensor& indices) {
  return table.is_cpu() && table.scalar_type() == at::kFloat && table.dim() == 2 && table.is_contiguous() &&
         indices.is_cpu() && indices.scalar_type() == at::kLong && indices.dim() == 1 && indices.is_contiguous();
}

void check_range(const at::Tensor& indices, int64_t rows, const char* name) {
  const auto* data = indices.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < indices.numel(); ++i) {
    TORCH_CHECK_INDEX(data[i] >= 0 && data[i] < rows, "bpr_loss: ", name, " ", data[i], " of row ", i,
                      " is out of range for ", rows, " rows");
  }
}

at::Tensor loss_of(const at::Tensor& margins) { return -at::log_sigmoid(margins).mean(); }

}  // namespace

at::Tensor GradientBuffers::take(const at::Tensor& like) {
  const auto bytes = like.nbytes();
  auto block = std::find_if(blocks_.begin(), blocks_.end(),
                            [&](const auto& kept) { return kept.use_count() == 1 && kept->size() == bytes; });
  if (block == blocks_.end()) {
    std::erase_if(blocks_, [&](const auto& kept) { return kept.use_count() == 1 && blocks_.size() > 8; });
    block = blocks_.insert(blocks_.end(), std::make_shared<std::vector<char>>(bytes));
  }
  return at::from_blob((*block)->data(), like.sizes(), [held = *block](void*) {}, like.options());
}

at::Tensor bpr_loss(const at::Tensor& positive_scores, const at::Tensor& negative_scores) {
  return loss_of(positive_scores - negative_scores);
}

at::Tensor bpr_loss(const at::Tensor& user_table, const at::Tensor& item_table, const at::Tensor& users,
                    const at::Tensor& positives, const at::Tensor& negatives, GradientBuffers& buffers, bool sparse) {
  const int64_t count = users.numel();
  const bool fast = !plans_gpu_memory() && has_fast_path(user_table, users) && has_fast_path(item_table, positives) &&
                    has_fast_path(item_table, negatives) && count > 0;
  if (!fast) {
    const std::vector<at::Tensor> items =
        trainkit::embedding_lookup(at::stack({positives, negatives}), item_table, sparse).unbind();
    const at::Tensor margins = (trainkit::embedding_lookup(users, user_table, sparse) * (items[0] - items[1])).sum(-1);
    return loss_of(margins);
  }
  TORCH_CHECK_VALUE(
      user_table.size(1) == item_table.size(1) && positives.numel() == count && negatives.numel() == count,
      "bpr_loss: tables ", user_table.sizes(), " and ", item_table.sizes(), " for ", count, ", ", positives.numel(),
      " and ", negatives.numel(), " indices");
  check_range(users, user_table.size(0), "user");
  check_range(positives, item_table.size(0), "positive");
  check_range(negatives, item_table.size(0), "negative");
  return FusedBprLoss::apply(user_table, item_table, users, positives, negatives, &buffers, sparse);
}

}  // namespace trainkit::rec
