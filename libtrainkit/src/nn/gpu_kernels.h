#pragma once
/// The kernels of fused_ops.h on plain memory: for a GPU, and the same arithmetic on the CPU.
///
/// Nothing here allocates or synchronises: what a kernel needs besides its results is given to it, so that it can be
/// captured in a CUDA graph and a step on the CPU takes the memory that it takes on a GPU. Sums over rows are added up
/// in an order that depends on the shape alone. C++17 without LibTorch: nvcc compiles it, too.

#include <cstdint>

namespace trainkit::detail {

/// What a tensor holds. Sums and everything in between are float32.
enum class Number : uint8_t { kFloat, kBFloat16, kHalf };

/// Of one call: `stream` of the residual stream, weights and biases, `product` of what goes into or comes from a matrix
/// product. They are the same, or the first is kFloat.
struct Numbers {
  Number stream, product;
};

/// run(T of the stream, T of the product), with what the caller's side has for numbers of 16 bits.
template <typename BFloat16, typename Half, typename Run>
auto for_numbers(Numbers numbers, const Run& run) {
  if (numbers.stream == Number::kBFloat16) return run(BFloat16(), BFloat16());
  if (numbers.stream == Number::kHalf) return run(Half(), Half());
  if (numbers.product == Number::kBFloat16) return run(0.0f, BFloat16());
  if (numbers.product == Number::kHalf) return run(0.0f, Half());
  return run(0.0f, 0.0f);
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Into how many parts sums over rows are divided at most: enough to keep a GPU busy, few enough to be small. So many
/// have room in `parts`, whatever the number of rows: memory that is planned grows in proportion to the batch.
constexpr int64_t most_parts(int64_t width) {
  constexpr int64_t kLeast = 128, kMost = 512, kValues = int64_t{1} << 20;
  const int64_t parts = kValues / width;
  return parts < kLeast ? kLeast : parts > kMost ? kMost : parts;
}

/// And into how many they are divided: each has some rows. Part p has the rows p, p + parts, p + 2 parts, ...
constexpr int64_t parts_of(int64_t rows, int64_t width) {
  constexpr int64_t kRows = 16;
  const int64_t worthwhile = ceil_div(rows, kRows), most = most_parts(width);
  return worthwhile < most ? worthwhile : most;
}

/// residual_layer_norm: sum = x + added, out = weight (sum - mean) inverse_std + bias, by row.
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
  const void* d_residual;  // (rows, width) of the stream, or null: what comes to `sum` past the norm
  const void* sum;
  const void* weight;
  const float* mean;
  const float* inverse_std;
  void* d_sum;     // (rows, width) of the stream
  void* d_added;   // the same of the product, or null
  float* parts;    // (most_parts(width), 2, width), or 1 for 2 without d_bias
  void* d_weight;  // (width) of the stream
  void* d_bias;    // or null
};

/// bias_gelu: out = gelu(x + bias).
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

/// cross_entropy: the mean of log sum e^logit - logit[target] over the rows whose target counts.
struct CrossEntropyArguments {
  int64_t rows, classes, ignore_index;
  const void* logits;     // (rows, classes) of the product
  const int64_t* target;  // (rows); one that is neither a class nor ignore_index is an error of the device
  float* log_sums;        // (rows, 2): the maximum of a row, and log sum e^(logit - maximum)
  float* losses;          // (rows)
  float* inverse_count;   // one: 1 / rows that count
  void* loss;             // one, of the stream
};

struct CrossEntropyGradientArguments {
  int64_t rows, classes, ignore_index;
  const void* logits;
  const int64_t* target;
  const float* log_sums;
  const float* inverse_count;
  const void* d_loss;  // one, of the stream
  void* d_logits;      // (rows, classes) of the product
};

/// Each starts its kernels on `stream` (a cudaStream_t of the current device) and returns their cudaError_t. Zero rows
/// are no error; a width of zero is the caller's. None of it exists in a build without CUDA.
namespace on_gpu {
int run(const NormArguments& arguments, Numbers numbers, void* stream);
int run(const NormGradientArguments& arguments, Numbers numbers, void* stream);
int run(const GeluArguments& arguments, Numbers numbers, void* stream);
int run(const GeluGradientArguments& arguments, Numbers numbers, void* stream);
int run(const CrossEntropyArguments& arguments, Numbers numbers, void* stream);
int run(const CrossEntropyGradientArguments& arguments, Numbers numbers, void* stream);
}  // namespace on_gpu

/// The same in memory of the CPU, by LibTorch's threads. A target out of range throws c10::IndexError.
namespace on_cpu {
void run(const NormArguments& arguments, Numbers numbers);
void run(const NormGradientArguments& arguments, Numbers numbers);
void run(const GeluArguments& arguments, Numbers numbers);
void run(const GeluGradientArguments& arguments, Numbers numbers);
void run(const CrossEntropyArguments& arguments, Numbers numbers);
void run(const CrossEntropyGradientArguments& arguments, Numbers numbers);
}  // namespace on_cpu

}  // namespace trainkit::detail
