#include <ATen/ops/tensor.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trainkit/core/evaluation_mode.h"
#include "trainkit/core/random.h"
#include "trainkit/nn/transformer.h"

namespace trainkit {
namespace {

/// Draws an index with probability softmax(logits / temperature) among the top_k greatest (all if 0).
int64_t draw(const std::vector<float>& logits, const GenerateOptions& options, RandomStream& random) {
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto greater = [&](int64_t a, int64_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  if (options.temperature == 0) return *std::min_element(order.begin(), order.end(), greater);

  const auto size = static_cast<int64_t>(order.size());
  const auto kept = static_cast<std::ptrdiff_t>(options.top_k > 0 ? std::min(options.top_k, size) : size);
  std::partial_sort(order.begin(), order.begin() + kept, order.end(), greater);
  order.resize(static_cast<size_t>(kept));
  std::vector<double> cumulative;
  double sum = 0;
  for (int64_t index : order) {
    sum += std::exp((static_cast<double>(logits[index]) - logits[order[0]]) / options.temperature);
    cumulative.push_back(sum);
  }
  const auto at = std::upper_bound(cumulative.begin(), cumulative.end(), random.uniform() * sum);
  return order[std::min<size_t>(static_cast<size_t>(at - cumulative.begin()), order.size() - 1)];
}

void check_generation(const std::vector<int64_t>& prompt, const GenerateOptions& options) {
  TORCH_CHECK_VALUE(!prompt.empty(), "the prompt must have at least one token");
  TORCH_CHECK_VALUE(options.max_tokens >= 0, "max_tokens must be >= 0, got ", options.max_tokens);
  TORCH_CHECK_VALUE(options.temperature >= 0 && std::isfinite(options.temperature), "temperature must be >= 0, got ",
                    options.temperature);
  TORCH_CHECK_VALUE(options.top_k >= 0, "top_k must be >= 0, got ", options.top_k);
}

/// Draws the token after the last position of `logits`, (1, T, V).
int64_t draw_next(const at::Tensor& logits, const GenerateOptions& options, RandomStream& random) {
  const at::Tensor last = logits[0][-1].to(at::kCPU, at::kFloat).contiguous();
  const float* values = last.const_data_ptr<float>();
  return draw({values, values + last.numel()}, options, random);
}

}  // namespace

std::vector<int64_t> generate(Transformer& model, const std::vector<int64_t>& prompt, const GenerateOptions& options) {
  const TransformerConfig& config = model->config();
  check_generation(prompt, options);
  TORCH_CHECK_VALUE(options.slide >= 0 && options.slide <= config.block_size, "slide must be in 0..", config.block_size,
                    ", got ", options.slide);
  for (int64_t id : prompt) {
    TORCH_CHECK_INDEX(id >= 0 && id < config.vocab_size, "token ", id, " is outside the vocabulary of ",
                      config.vocab_size);
  }
  const EvaluationMode evaluation(*model);
  const at::Device device = model->parameters().front().device();
  const int64_t slide = options.slide > 0 ? options.slide : std::max<int64_t>(config.block_size / 2, 1);
  RandomStream random(hash_key(options.seed));
  std::vector<int64_t> tokens = prompt;
  KeyValueCache cache;
  int64_t seen = std::min(static_cast<int64_t>(tokens.size()), config.block_size);
  for (int64_t i = 0; i < options.max_tokens; ++i, ++seen) {
    if (seen > config.block_size) {
      seen -= slide;
      cache.length = 0;
    }
    const auto fresh = static_cast<size_t>(seen - cache.length);
    const at::Tensor ids = at::tensor(at::IntArrayRef(tokens).slice(tokens.size() - fresh), at::kLong);
    tokens.push_back(draw_next(model->forward(ids.unsqueeze(0).to(device), cache), options, random));
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()), tokens.end()};
}

std::vector<int64_t> generate(const TokenLogits& logits, const std::vector<int64_t>& prompt, int64_t context,
                              const GenerateOptions& options) {
  check_generation(prompt, options);
  TORCH_CHECK_VALUE(context >= 1, "context must be >= 1, got ", context);
  RandomStream random(hash_key(options.seed));
  std::vector<int64_t> tokens = prompt;
  for (int64_t i = 0; i < options.max_tokens; ++i) {
    const size_t seen = std::min(tokens.size(), static_cast<size_t>(context));
    const at::Tensor ids = at::tensor(at::IntArrayRef(tokens).slice(tokens.size() - seen), at::kLong);
    tokens.push_back(draw_next(logits(ids.unsqueeze(0)), options, random));
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()), tokens.end()};
}

}  // namespace trainkit
