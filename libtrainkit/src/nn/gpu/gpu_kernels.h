#pragma once
/// Kernels of fused_ops.h on raw pointers: for a GPU, and with the same arithmetic for the CPU.
///
/// Nothing here allocates or synchronises. The caller provides all scratch memory, so that kernels can be captured in a
/// CUDA graph and a step on the CPU allocates the memory of a step on a GPU. The order of sums over rows depends only
/// on the shape. C++17 without LibTorch, since nvcc compiles it too.

#include <cstdint>

namespace trainkit::detail {

/// Dtype of a tensor. Sums and intermediate values are float32.
enum class Number : uint8_t { kFloat, kBFloat16, kHalf };

/// Dtypes of one call: `stream` of the residual stream, weights and biases; `product` of the inputs and outputs of
/// matrix products. They are equal, or `stream` is kFloat.
struct Numbers {
  Number stream, product;
};

/// Calls run(T of the stream, T of the product), with the caller's types for 16-bit numbers.
template <typename BFloat16, typename Half, typename Run>
auto for_numbers(Numbers numbers, const Run& run) {
  if (numbers.stream == Number::kBFloat16) return run(BFloat16(), BFloat16());
  if (numbers.stream == Number::kHalf) return run(Half(), Half());
  if (numbers.product == Number::kBFloat16) return run(0.0f, BFloat16());
  if (numbers.product == Number::kHalf) return run(0.0f, Half());
  return run(0.0f, 0.0f);
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Note [Sums in parts]
// ~~~~~~~~~~~~~~~~~~~~
// Sums over rows (gradients of weights and biases) are computed in `parts_of` partial sums, which a second kernel adds
// in order. No atomics are used, so results are bitwise repeatable. The buffer has room for `most_parts` parts,
// whatever the number of rows: memory planning assumes that memory grows in proportion to the batch.

/// Returns the maximum number of parts: enough to occupy a GPU, few enough for a small buffer. See
/// Note [Sums in parts].
constexpr int64_t most_parts(int64_t width) {
  constexpr int64_t kLeast = 128, kMost = 512, kValues = int64_t{1} << 20;
  const int64_t parts = kValues / width;
  return parts < kLeast ? kLeast : parts > kMost ? kMost : parts;
}

/// Returns the number of parts, each with at least one row. Part p sums the rows p, p + parts, p + 2 parts, ...
constexpr int64_t parts_of(int64_t rows, int64_t width) {
  constexpr int64_t kRows = 16;
  const int64_t worthwhile = ceil_div(rows, kRows), most = most_parts(width);
  return worthwhile < most ? worthwhile : most;
}

/// Arguments of residual_layer_norm: sum = x + added, out = weight (sum - mean) inverse_std + bias, per row.
struct NormArguments {
  int64_t rows, width;
  const void* x;      // (rows, width) of the stream
  const void* added;  // (rows, width) of the product, or null
  const void* weight;
  const void* bias;  // or null
  float eps;
  void* sum;           // (rows, width) of the stream; not written without `added`
  void* out;           // (rows, width) of the product
  float* mean;         // (rows)
  float* inverse_std;  // (rows)
};

struct NormGradientArguments {
  int64_t rows, width;
  const void* d_out;       // (rows, width) of the product
  const void* d_residual;  // (rows, width) of the stream, or null: gradient of `sum` past the norm
  const void* sum;
  const void* weight;
  const float* mean;
  const float* inverse_std;
  void* d_sum;     // (rows, width) of the stream
  void* d_added;   // same in the product's dtype, or null
  float* parts;    // (most_parts(width), 2, width); (most_parts(width), 1, width) without d_bias
  void* d_weight;  // (width) of the stream
  void* d_bias;    // or null
};

/// Arguments of bias_gelu: out = gelu(x + bias).
struct GeluArguments {
  int64_t rows, width;
  bool by_tanh;
  const void* x;     // (rows, width) of the product
  const void* bias;  // (width) of the stream
  void* out;         // (rows, width) of the product
};

struct GeluGradientArguments {
  int64_t rows, width;
  bool by_tanh;
  const void* d_out;
  const void* x;
  const void* bias;
  void* d_x;
  float* parts;  // (most_parts(width), width)
  void* d_bias;  // (width) of the stream
};

/// Arguments of cross_entropy: the mean of log sum e^logit - logit[target] over the rows whose target is not ignored.
struct CrossEntropyArguments {
  int64_t rows, classes, ignore_index;
  const void* logits;     // (rows, classes) of the product
  const int64_t* target;  // (rows); a value that is neither a class nor ignore_index is a device error
  float* log_sums;        // (rows, 2): the maximum of a row, and log sum e^(logit - maximum)
  float* losses;          // (rows)
  float* inverse_count;   // scalar: 1 / number of targets that are not ignored, 0 if all are
  void* loss;             // scalar, of the stream
};

/// The losses of rows of logits, as above, before their mean. With `differentiates` the logits are replaced by the
/// gradient of the row's own loss: softmax - one_hot, zeros in ignored rows.
struct RowLossArguments {
  int64_t rows, classes, stride, ignore_index;
  void* logits;  // (rows, classes) of the product; a row begins `stride` values after the one before
  const int64_t* target;
  float* losses;  // (rows)
  bool differentiates;
};

/// The mean of the losses of rows whose target is not ignored.
struct MeanLossArguments {
  int64_t rows, ignore_index;
  const int64_t* target;
  const float* losses;
  float* inverse_count;
  void* loss;  // scalar, of the stream
};

struct CrossEntropyGradientArguments {
  int64_t rows, classes, ignore_index;
  const void* logits;
  const int64_t* target;
  const float* log_sums;
  const float* inverse_count;
  const void* d_loss;  // scalar, of the stream
  void* d_logits;      // (rows, classes) of the product
};

/// Lookups that the gradient of an embedding takes: a block keeps the places of all in shared memory.
constexpr int kMostLookups = 4096;

/// Gradient of an embedding: d_weight[id] is the sum of the rows of d_out whose lookup is `id`.
struct EmbeddingGradientArguments {
  int64_t lookups, width;  // at most kMostLookups
  const int64_t* ids;      // (lookups)
  const float* d_out;      // (lookups, width)
  float* d_weight;         // (rows of the table, width); rows without a lookup are not written
};

/// Launch the kernels on `stream` (a cudaStream_t of the current device) and return their cudaError_t. Zero rows are
/// allowed; the caller excludes zero width. Not available in a build without CUDA.
namespace on_gpu {
int run(const NormArguments& arguments, Numbers numbers, void* stream);
int run(const NormGradientArguments& arguments, Numbers numbers, void* stream);
int run(const GeluArguments& arguments, Numbers numbers, void* stream);
int run(const GeluGradientArguments& arguments, Numbers numbers, void* stream);
int run(const CrossEntropyArguments& arguments, Numbers numbers, void* stream);
int run(const CrossEntropyGradientArguments& arguments, Numbers numbers, void* stream);
int run(const RowLossArguments& arguments, Numbers numbers, void* stream);
int run(const MeanLossArguments& arguments, Numbers numbers, void* stream);
int run(const EmbeddingGradientArguments& arguments, Numbers numbers, void* stream);
}  // namespace on_gpu

/// Compute the same in CPU memory, with LibTorch's threads. A target out of range throws c10::IndexError.
namespace on_cpu {
void run(const NormArguments& arguments, Numbers numbers);
void run(const NormGradientArguments& arguments, Numbers numbers);
void run(const GeluArguments& arguments, Numbers numbers);
void run(const GeluGradientArguments& arguments, Numbers numbers);
void run(const CrossEntropyArguments& arguments, Numbers numbers);
void run(const CrossEntropyGradientArguments& arguments, Numbers numbers);
void run(const RowLossArguments& arguments, Numbers numbers);
void run(const MeanLossArguments& arguments, Numbers numbers);
void run(const EmbeddingGradientArguments& arguments, Numbers numbers);
}  // namespace on_cpu

}  // namespace trainkit::detail
