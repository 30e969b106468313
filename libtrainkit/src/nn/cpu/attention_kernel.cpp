#include "nn/cpu/attention_kernel.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "core/machine/parallel.h"
#include "core/machine/shapes_only.h"
#include "core/tensors/recorded.h"
#include "core/tensors/vectors.h"
#include "nn/cpu/attention_tiles.h"

namespace trainkit::detail {

static std::vector<at::Tensor> tensors_of(const Attended& attended) { return {attended.mixed, attended.logsumexp}; }

namespace {

constexpr int64_t kQueries = 64;    // query rows per block of scores
constexpr int64_t kMaxWidth = 256;  // of a head
constexpr int64_t kMaxTime = 4096;
constexpr float kHidden = -std::numeric_limits<float>::infinity();  // score of a masked key

// Note [Attention kernel]
// ~~~~~~~~~~~~~~~~~~~~~~~
// One task computes one head of one sequence. Keys are transposed once into columns (keys_t), so that scores, softmax
// and the weighted sum all run over contiguous vectors of kLanes keys. Queries are processed in blocks of kQueries
// rows; products use register tiles of kTileRows rows and two vectors of columns.
//
// Scores of a tile are computed only up to the last key that its last row can see, rounded up to kLanes. Everything
// beyond `time` or beyond the diagonal is padding: scores there are set to kHidden and weights to zero, and padded rows
// are zero, so that products can run over whole tiles. Each value is produced by one thread in a fixed order, which
// makes results bitwise independent of the number of threads.
//
// The keys of a document form a range that ends at the diagonal. `first` is the first key of each position's document,
// 0 without documents; it never decreases. A tile therefore also begins at the first key that its first row can see,
// rounded down to kLanes, and nothing before it is computed or read.
//
// The softmax keeps weights unnormalised and multiplies the output row by 1 / sum. Forward saves only log(sum e^score)
// per row; backward recomputes the weights as e^(score - logsumexp) and uses sum(d_weight * weight) = sum(d_mixed *
// mixed) (Dao et al., arXiv 2205.14135).

/// Size and strides of one head of one sequence. See Note [Attention kernel].
struct Head {
  int64_t time, width;
  int64_t row;  // stride between positions in qkv, in values
  int64_t out;  // stride between positions in the output, in values
  float scale;
};

/// Scratch memory of one task.
struct Scratch {
  Scratch(int64_t time, int64_t width, bool backward) : first(static_cast<size_t>(time)) {
    const int64_t keys = round_up(time, kLanes), rows = std::min(kQueries, round_up(time, kTileRows));
    size_t at = 0;
    const auto take = [&](int64_t floats) {
      const size_t here = at;
      at += static_cast<size_t>(round_up(floats, kLanes));
      return here;
    };
    const size_t places[] = {take(width * keys), take(rows * width), take(rows * keys), take(keys * width), take(keys)};
    const size_t more[] = {take(backward ? width * keys : 0), take(backward ? rows * width : 0),
                           take(backward ? rows * keys : 0),  take(backward ? keys * width : 0),
                           take(backward ? keys * width : 0), take(backward ? rows * width : 0)};
    memory.reset(new (std::align_val_t{64}) float[at]());
    float* const base = memory.get();
    keys_t = base + places[0], q = base + places[1], p = base + places[2], v = base + places[3],
    bias = base + places[4];
    values_t = base + more[0], dy = base + more[1], dp = base + more[2], dk = base + more[3], dv = base + more[4],
    dq = base + more[5];
  }

  struct Delete {
    void operator()(float* data) const { ::operator delete[](data, std::align_val_t{64}); }
  };
  std::unique_ptr<float[], Delete> memory;
  float *keys_t, *values_t;    // (width, keys): columns are positions
  float *q, *dy, *dq;          // (rows, width): scaled queries, and gradients
  float *p, *dp;               // (rows, keys): scores and weights
  float* v;                    // (keys, width): values; keys in backward
  float *dk, *dv;              // (keys, width)
  float* bias;                 // (keys): 0, or kHidden
  std::vector<int32_t> first;  // (time): first key of each position's document
};

/// Columns that a tile of rows computes: the keys that its rows can see, rounded to kLanes.
struct Columns {
  int64_t begin, end;
};

/// Returns the columns of the tile whose first row is `position`.
TRAINKIT_INLINE Columns columns_of(const Scratch& scratch, int64_t keys, int64_t position) {
  return {scratch.first[static_cast<size_t>(position)] / kLanes * kLanes,
          std::min(keys, round_up(position + kTileRows, kLanes))};
}

/// Computes the scores of `count` queries from `first` on, for the keys that each tile of rows can see.
TRAINKIT_INLINE void scores(const Scratch& scratch, const Head& head, int64_t keys, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; i += kTileRows) {
    const Columns columns = columns_of(scratch, keys, first + i);
    multiply<false>(scratch.q + i * head.width, head.width, 1, scratch.keys_t + columns.begin, keys, head.width,
                    scratch.p + i * keys + columns.begin, keys, columns.end - columns.begin);
  }
}

/// The keys that one row attends to: [first, position] without those that are masked, in `columns`.
struct Visible {
  int64_t position;
  int32_t first;
  Columns columns;
};

TRAINKIT_INLINE Visible visible_to(const Scratch& scratch, int64_t position, Columns columns) {
  return {position, scratch.first[static_cast<size_t>(position)], columns};
}

/// Loads the scores of a row with masked keys set to kHidden.
TRAINKIT_INLINE void load_masked_scores(const float* row, const float* bias, int64_t j, const Visible& visible,
                                        Floats& score) {
  constexpr Signs kLane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  Floats hidden;
  load(row + j, score);
  load(bias + j, hidden);
  score += hidden;
  if (j >= visible.first && j + kLanes <= visible.position + 1) return;  // each of these keys is seen
  const Signs key = kLane + static_cast<int32_t>(j);
  const Signs unseen = (key > static_cast<int32_t>(visible.position)) | (key < visible.first);
  score = unseen ? Floats{} + kHidden : score;
}

/// Writes the unnormalised weights of a row: zero for masked keys, in the columns of its tile. @return log(sum
/// e^score), 0 if all keys are masked; `factor` is 1 / sum.
TRAINKIT_INLINE float softmax_row(float* row, const float* bias, const Visible& visible, float& factor) {
  const auto [begin, end] = visible.columns;
  Floats highest = Floats{} + kHidden;
  for (int64_t j = begin; j < end; j += kLanes) {
    Floats score;
    load_masked_scores(row, bias, j, visible, score);
    store(score, row + j);
    highest = highest < score ? score : highest;
  }
  float most = kHidden;
  for (int64_t k = 0; k < kLanes; ++k) most = most < highest[k] ? highest[k] : most;
  if (most == kHidden) most = 0;
  Floats sums = {};
  for (int64_t j = begin; j < end; j += kLanes) {
    Floats score;
    load(row + j, score);
    const Signs unseen = score == kHidden;
    score -= most;
    exp_of(score);
    score = unseen ? Floats{} : score;  // keeps NaN
    store(score, row + j);
    sums += score;
  }
  const float sum = sum_of(sums);
  factor = sum == 0 ? 0 : 1 / sum;
  return sum == 0 ? 0 : most + std::log(sum);
}

template <typename T>
TRAINKIT_INLINE void forward_head(const T* qkv, const Head& head, Scratch& scratch, T* out, float* logsumexp) {
  const int64_t keys = round_up(head.time, kLanes), channels = head.out;
  to_columns(qkv + channels, head.row, head.time, head.width, scratch.keys_t, keys);
  to_rows(qkv + 2 * channels, head.row, head.time, head.width, 1, scratch.v);
  for (int64_t first = 0; first < head.time; first += kQueries) {
    const int64_t count = std::min(kQueries, head.time - first);
    to_rows(qkv + first * head.row, head.row, count, head.width, head.scale, scratch.q);
    scores(scratch, head, keys, first, count);
    float factors[kQueries];
    for (int64_t i = 0; i < round_up(count, kTileRows); ++i) {
      float* row = scratch.p + i * keys;
      const Columns columns = columns_of(scratch, keys, first + i / kTileRows * kTileRows);
      if (i < count)
        logsumexp[first + i] = softmax_row(row, scratch.bias, visible_to(scratch, first + i, columns), factors[i]);
      else
        std::fill(row + columns.begin, row + columns.end, 0.0f);
    }
    for (int64_t i = 0; i < count; i += kTileRows) {
      const int64_t begin = columns_of(scratch, keys, first + i).begin;
      multiply<false>(scratch.p + i * keys + begin, keys, 1, scratch.v + begin * head.width, head.width,
                      std::min(head.time, first + i + kTileRows) - begin, scratch.q + i * head.width, head.width,
                      head.width);
    }
    for (int64_t i = 0; i < count; ++i) {  // overwrites the queries, which are no longer needed
      float* row = scratch.q + i * head.width;
      for (int64_t d = 0; d < head.width; ++d) row[d] *= factors[i];
    }
    from_rows(scratch.q, count, head.width, out + first * channels, channels);
  }
}

/// Converts scores to weights, and gradients of weights to gradients of scores, in one row. `delta` is sum(d_mixed *
/// mixed).
TRAINKIT_INLINE void gradient_row(float* p, float* dp, const float* bias, const Visible& visible, float logsumexp,
                                  float delta) {
  for (int64_t j = visible.columns.begin; j < visible.columns.end; j += kLanes) {
    Floats weight, gradient;
    load_masked_scores(p, bias, j, visible, weight);
    load(dp + j, gradient);
    const Signs unseen = weight == kHidden;
    weight -= logsumexp;
    exp_of(weight);
    weight = unseen ? Floats{} : weight;
    store(weight, p + j);
    store(weight * (gradient - delta), dp + j);
  }
}

/// Returns the end of the queries from `from` on whose tiles have column `j`.
TRAINKIT_INLINE int64_t end_of_readers(const Scratch& scratch, int64_t keys, int64_t first, int64_t from, int64_t count,
                                       int64_t j) {
  int64_t to = from;
  while (to < count && columns_of(scratch, keys, first + to).begin <= j) to += kTileRows;
  return std::min(to, count);
}

template <typename T>
TRAINKIT_INLINE void backward_head(const T* qkv, const T* mixed, const T* d_mixed, const float* logsumexp,
                                   const Head& head, Scratch& scratch, T* d_qkv) {
  const int64_t keys = round_up(head.time, kLanes), channels = head.out, width = head.width;
  to_columns(qkv + channels, head.row, head.time, width, scratch.keys_t, keys);
  to_columns(qkv + 2 * channels, head.row, head.time, width, scratch.values_t, keys);
  to_rows(qkv + channels, head.row, head.time, width, 1, scratch.v);
  std::fill(scratch.dk, scratch.dk + keys * width, 0.0f);
  std::fill(scratch.dv, scratch.dv + keys * width, 0.0f);
  for (int64_t first = 0; first < head.time; first += kQueries) {
    const int64_t count = std::min(kQueries, head.time - first), rows = round_up(count, kTileRows);
    to_rows(qkv + first * head.row, head.row, count, width, head.scale, scratch.q);
    to_rows(d_mixed + first * channels, channels, count, width, 1, scratch.dy);
    scores(scratch, head, keys, first, count);
    for (int64_t i = 0; i < count; i += kTileRows) {
      const auto [begin, end] = columns_of(scratch, keys, first + i);
      multiply<false>(scratch.dy + i * width, width, 1, scratch.values_t + begin, keys, width,
                      scratch.dp + i * keys + begin, keys, end - begin);
    }
    for (int64_t i = 0; i < rows; ++i) {
      const Columns columns = columns_of(scratch, keys, first + i / kTileRows * kTileRows);
      if (i >= count) {
        std::fill(scratch.p + i * keys + columns.begin, scratch.p + i * keys + columns.end, 0.0f);
        std::fill(scratch.dp + i * keys + columns.begin, scratch.dp + i * keys + columns.end, 0.0f);
        continue;
      }
      Floats delta = {};
      for (int64_t d = 0; d < width; d += kLanes) {
        Floats out, gradient;
        load(mixed + (first + i) * channels + d, out);
        load(scratch.dy + i * width + d, gradient);
        delta += out * gradient;
      }
      gradient_row(scratch.p + i * keys, scratch.dp + i * keys, scratch.bias, visible_to(scratch, first + i, columns),
                   logsumexp[first + i], sum_of(delta));
    }
    for (int64_t i = 0; i < count; i += kTileRows) {
      const int64_t begin = columns_of(scratch, keys, first + i).begin;
      multiply<false>(scratch.dp + i * keys + begin, keys, 1, scratch.v + begin * width, width,
                      std::min(head.time, first + i + kTileRows) - begin, scratch.dq + i * width, width, width);
    }
    // Gradients of keys and values, one tile of positions at a time, from the queries that attend to them.
    for (int64_t j = 0; j < std::min(head.time, first + count); j += kTileRows) {
      const int64_t from = std::max<int64_t>(0, j - first) / kTileRows * kTileRows;
      const int64_t to = end_of_readers(scratch, keys, first, from, count, j);
      multiply<true>(scratch.p + from * keys + j, 1, keys, scratch.dy + from * width, width, to - from,
                     scratch.dv + j * width, width, width);
      multiply<true>(scratch.dp + from * keys + j, 1, keys, scratch.q + from * width, width, to - from,
                     scratch.dk + j * width, width, width);
    }
    for (int64_t k = 0; k < count * width; ++k) scratch.dq[k] *= head.scale;
    from_rows(scratch.dq, count, width, d_qkv + first * head.row, head.row);
  }
  from_rows(scratch.dk, head.time, width, d_qkv + channels, head.row);
  from_rows(scratch.dv, head.time, width, d_qkv + 2 * channels, head.row);
}

// Defined by a macro for each dtype, because functions compiled for several instruction sets cannot be templates.
#define TRAINKIT_KERNELS(T)                                                                                          \
  TRAINKIT_VECTORIZED void run_forward(const T* qkv, const Head& head, Scratch& scratch, T* out, float* logsumexp) { \
    forward_head(qkv, head, scratch, out, logsumexp);                                                                \
  }                                                                                                                  \
  TRAINKIT_VECTORIZED void run_backward(const T* qkv, const T* mixed, const T* d_mixed, const float* logsumexp,      \
                                        const Head& head, Scratch& scratch, T* d_qkv) {                              \
    backward_head(qkv, mixed, d_mixed, logsumexp, head, scratch, d_qkv);                                             \
  }
TRAINKIT_KERNELS(float)
TRAINKIT_KERNELS(uint16_t)  // bfloat16
#undef TRAINKIT_KERNELS

/// Writes the first key of each position's document. Any positions give an order that never decreases.
void find_documents(const int64_t* positions, std::vector<int32_t>& first) {
  int64_t begin = 0;
  for (size_t i = 0; i < first.size(); ++i) {
    const auto here = static_cast<int64_t>(i);
    begin = std::clamp(here - positions[i], begin, here);
    first[i] = static_cast<int32_t>(begin);
  }
}

/// Calls work(head of qkv, index of qkv's first value, of the output's, of logsumexp's, scratch) for each head in
/// parallel.
template <typename Work>
void for_heads(const at::Tensor& qkv, const AttentionMask& masks, const CausalAttention& attention, bool backward,
               const Work& work) {
  if (shapes_only()) return;
  const int64_t batch = qkv.size(0), time = qkv.size(1), channels = qkv.size(2) / 3, heads = attention.n_heads;
  const Head head{time, channels / heads, 3 * channels, channels, static_cast<float>(attention.scale)};
  const bool* mask = masks.key_mask.defined() ? masks.key_mask.const_data_ptr<bool>() : nullptr;
  const at::Tensor& positions = masks.positions;
  parallel_for(0, batch * heads, 1, [&](int64_t begin, int64_t end) {
    Scratch scratch(time, head.width, backward);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / heads, offset = task % heads * head.width;
      for (int64_t j = 0; mask && j < time; ++j) scratch.bias[j] = mask[row * time + j] ? 0 : kHidden;
      if (positions.defined()) find_documents(positions.const_data_ptr<int64_t>() + row * time, scratch.first);
      work(head, row * time * 3 * channels + offset, row * time * channels + offset, task * time, scratch);
    }
  });
}

template <typename T>
Attended forward(const at::Tensor& qkv, const AttentionMask& mask, const CausalAttention& attention) {
  const int64_t batch = qkv.size(0), time = qkv.size(1), channels = qkv.size(2) / 3;
  Attended attended{at::empty({batch, time, channels}, qkv.options()),
                    at::empty({batch, attention.n_heads, time}, qkv.options().dtype(at::kFloat))};
  const T* from = static_cast<const T*>(qkv.const_data_ptr());
  T* out = static_cast<T*>(attended.mixed.mutable_data_ptr());
  auto* logsumexp = attended.logsumexp.mutable_data_ptr<float>();
  for_heads(qkv, mask, attention, false, [=](const Head& head, int64_t in, int64_t to, int64_t rows, Scratch& scratch) {
    run_forward(from + in, head, scratch, out + to, logsumexp + rows);
  });
  return attended;
}

template <typename T>
at::Tensor backward(const at::Tensor& d_mixed, const at::Tensor& qkv, const AttentionMask& mask,
                    const Attended& attended, const CausalAttention& attention) {
  at::Tensor d_qkv = at::empty_like(qkv);
  const T* from = static_cast<const T*>(qkv.const_data_ptr());
  const T* mixed = static_cast<const T*>(attended.mixed.const_data_ptr());
  const T* gradient = static_cast<const T*>(d_mixed.const_data_ptr());
  const auto* logsumexp = attended.logsumexp.const_data_ptr<float>();
  T* to = static_cast<T*>(d_qkv.mutable_data_ptr());
  for_heads(qkv, mask, attention, true, [=](const Head& head, int64_t in, int64_t out, int64_t rows, Scratch& scratch) {
    run_backward(from + in, mixed + out, gradient + out, logsumexp + rows, head, scratch, to + in);
  });
  return d_qkv;
}

}  // namespace

bool has_causal_attention(int64_t time, int64_t width, int64_t n_heads) {
  return width % (n_heads * kLanes) == 0 && width / n_heads <= kMaxWidth && time <= kMaxTime;
}

Attended causal_attention(const at::Tensor& qkv, const AttentionMask& mask, const CausalAttention& attention) {
  return recorded("trainkit::causal_attention", {qkv}, [&] {
    return qkv.scalar_type() == at::kFloat ? forward<float>(qkv, mask, attention)
                                           : forward<uint16_t>(qkv, mask, attention);
  });
}

at::Tensor causal_attention_backward(const at::Tensor& d_mixed, const at::Tensor& qkv, const AttentionMask& mask,
                                     const Attended& attended, const CausalAttention& attention) {
  return recorded("trainkit::causal_attention_backward", {d_mixed, qkv}, [&] {
    return qkv.scalar_type() == at::kFloat ? backward<float>(d_mixed, qkv, mask, attended, attention)
                                           : backward<uint16_t>(d_mixed, qkv, mask, attended, attention);
  });
}

}  // namespace trainkit::detail
