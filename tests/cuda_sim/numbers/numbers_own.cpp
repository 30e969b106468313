// Operations that the CPU lacks under CUDA's names, implemented from their definitions.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <map>

#include "numbers.h"

namespace cuda_sim {
namespace {

at::Tensor raised(const at::Tensor& t) { return t.defined() ? t.to(at::kFloat) : t; }

void native_dropout(const Counterpart& c) {
  const at::Tensor input = raised(c.arguments[0].toTensor());
  const double p = c.arguments[1].toDouble();
  const bool train = c.arguments[2].isNone() || c.arguments[2].toBool();
  if (!train || p == 0) {
    c.results[0].copy_(input);
    c.results[1].fill_(true);
    return;
  }
  const at::Tensor mask = at::empty(input.sizes(), at::kBool).bernoulli_(1 - p, generator_at(c.random));
  c.results[0].copy_(p == 1 ? at::zeros_like(input) : input * mask / (1 - p));
  c.results[1].copy_(mask);
}

/// softmax(q k^T scale + bias) of (batch, heads, rows, size), with the values needed for its gradient.
struct Attention {
  at::Tensor q, k, v, weights, kept, log_sums;  // kept: 0 or 1 / (1 - p) for each weight; undefined without dropout
  double scale;
};

struct AttentionOptions {
  at::Tensor bias;
  double dropout;
  bool is_causal;
  std::optional<double> scale;
  RandomPlace random;
};

Attention attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options) {
  Attention a{raised(q), raised(k), raised(v), {}, {}, {}, 0};
  a.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))));
  at::Tensor scores = at::matmul(a.q, a.k.transpose(-2, -1)) * a.scale;
  if (options.bias.defined()) scores = scores + raised(options.bias);
  if (options.is_causal) {
    const at::Tensor hidden = at::ones({scores.size(-2), scores.size(-1)}, at::kBool).triu(1);
    scores = scores.masked_fill(hidden, -std::numeric_limits<float>::infinity());
  }
  a.log_sums = at::logsumexp(scores, {-1});
  a.weights = at::softmax(scores, -1);
  if (options.dropout > 0) {
    a.kept =
        at::empty_like(a.weights).bernoulli_(1 - options.dropout, generator_at(options.random)) / (1 - options.dropout);
  }
  return a;
}

at::Tensor output_of(const Attention& a) { return at::matmul(a.kept.defined() ? a.weights * a.kept : a.weights, a.v); }

/// Gradients of q, k, v and of the scores (for a bias).
std::vector<at::Tensor> attention_gradients(const Attention& a, const at::Tensor& d_out) {
  const at::Tensor d = raised(d_out);
  const at::Tensor dropped = a.kept.defined() ? a.weights * a.kept : a.weights;
  const at::Tensor d_v = at::matmul(dropped.transpose(-2, -1), d);
  at::Tensor d_weights = at::matmul(d, a.v.transpose(-2, -1));
  if (a.kept.defined()) d_weights = d_weights * a.kept;
  const at::Tensor d_scores = a.weights * (d_weights - (d_weights * a.weights).sum(-1, true));
  return {at::matmul(d_scores, a.k) * a.scale, at::matmul(d_scores.transpose(-2, -1), a.q) * a.scale, d_v, d_scores};
}

std::optional<double> optional_double(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional<double>(value.toDouble());
}
at::Tensor optional_tensor(const c10::IValue& value) { return value.isTensor() ? value.toTensor() : at::Tensor(); }

/// Rows beyond `rows` (padding of kernels) stay unchanged.
void store_rows(const at::Tensor& to, const at::Tensor& from) {
  if (to.defined() && to.numel() > 0) to.narrow(-1, 0, from.size(-1)).copy_(from);
}

void store_value(const at::Tensor& to, uint64_t value) {
  if (to.defined() && to.numel() == 1) to.fill_(static_cast<int64_t>(value));
}

void efficient_attention(const Counterpart& c) {
  const auto& in = c.arguments;
  const Attention a =
      attend(in[0].toTensor(), in[1].toTensor(), in[2].toTensor(),
             {optional_tensor(in[3]), in[5].toDouble(), in[6].toBool(), optional_double(in[7]), c.random});
  c.results[0].copy_(output_of(a));
  if (in[4].toBool()) store_rows(c.results[1], a.log_sums);
  store_value(c.results[2], c.random.seed);
  store_value(c.results[3], c.random.offset);
}

RandomPlace place_in(const at::Tensor& seed, const at::Tensor& offset) {
  const auto value = [](const at::Tensor& t, int64_t i) {
    return static_cast<uint64_t>(t.flatten()[i].item<int64_t>());
  };
  if (!seed.defined() || seed.numel() == 0) return {};
  if (seed.numel() == 2) return {value(seed.view(at::kLong), 0), value(seed.view(at::kLong), 1)};
  return {value(seed, 0), offset.defined() && offset.numel() > 0 ? value(offset, 0) : 0};
}

void efficient_attention_backward(const Counterpart& c) {
  const auto& in = c.arguments;
  const Attention a = attend(in[1].toTensor(), in[2].toTensor(), in[3].toTensor(),
                             {optional_tensor(in[4]), in[9].toDouble(), in[11].toBool(), optional_double(in[12]),
                              place_in(in[7].toTensor(), in[8].toTensor())});
  const auto gradients = attention_gradients(a, in[0].toTensor());
  for (size_t i = 0; i < 3; ++i) {
    if (c.results[i].defined()) c.results[i].copy_(gradients[i]);
  }
  if (c.results[3].defined() && c.results[3].numel() > 0)
    c.results[3].copy_(gradients[3].sum_to_size(c.results[3].sizes()));
}

void flash_attention(const Counterpart& c) {
  const auto& in = c.arguments;
  const Attention a = attend(in[0].toTensor(), in[1].toTensor(), in[2].toTensor(),
                             {{}, in[3].toDouble(), in[4].toBool(), optional_double(in[6]), c.random});
  c.results[0].copy_(output_of(a));
  store_rows(c.results[1], a.log_sums);
  if (c.results[6].defined() && c.results[6].numel() == 2) {  // rng_state: seed and offset
    const at::Tensor state = c.results[6].view(at::kLong);
    state[0].fill_(static_cast<int64_t>(c.random.seed));
    state[1].fill_(static_cast<int64_t>(c.random.offset));
  }
}

void flash_attention_backward(const Counterpart& c) {
  const auto& in = c.arguments;
  const Attention a = attend(in[1].toTensor(), in[2].toTensor(), in[3].toTensor(),
                             {{},
                              in[10].toDouble(),
                              in[11].toBool(),
                              optional_double(in[14]),
                              place_in(in[12].toTensor(), in[13].toTensor())});
  const auto gradients = attention_gradients(a, in[0].toTensor());
  for (size_t i = 0; i < 3; ++i) c.results[i].copy_(gradients[i]);
}

/// (self, weight, kernel_size, bias, stride, padding, dilation[, out])
void depthwise(const Counterpart& c) {
  const auto& in = c.arguments;
  const at::Tensor x = raised(in[0].toTensor());
  const at::Tensor y = at::convolution(x, raised(in[1].toTensor()), raised(optional_tensor(in[3])), in[4].toIntVector(),
                                       in[5].toIntVector(), in[6].toIntVector(), false,
                                       std::vector<int64_t>(in[4].toIntVector().size(), 0), x.size(1));
  (in.size() > 7 ? in[7].toTensor() : c.results[0]).copy_(y);
}

/// (grad_output, self, buffer[, grad_input]): CUDA leaves the buffer empty.
void log_sigmoid_backward(const Counterpart& c) {
  const at::Tensor x = raised(c.arguments[1].toTensor());
  const at::Tensor gradient = raised(c.arguments[0].toTensor()) * at::sigmoid(-x);
  (c.arguments.size() > 3 ? c.arguments[3].toTensor() : c.results[0]).copy_(gradient);
}

/// (self, mat2, dtype[, out]): a product whose result has another dtype.
void mm_dtype(const Counterpart& c) {
  const at::Tensor product = at::mm(raised(c.arguments[0].toTensor()), raised(c.arguments[1].toTensor()));
  (c.arguments.size() > 3 ? c.arguments[3].toTensor() : c.results[0]).copy_(product);
}

/// (self, mat1, mat2, dtype, beta, alpha[, out])
void addmm_dtype(const Counterpart& c) {
  const at::Tensor product = at::mm(raised(c.arguments[1].toTensor()), raised(c.arguments[2].toTensor()));
  const at::Tensor sum =
      raised(c.arguments[0].toTensor()) * c.arguments[4].toScalar() + product * c.arguments[5].toScalar();
  (c.arguments.size() > 6 ? c.arguments[6].toTensor() : c.results[0]).copy_(sum);
}

}  // namespace

std::function<void(const Counterpart&)> counterpart_of(const std::string& operation) {
  static const auto* const all = new std::map<std::string, std::function<void(const Counterpart&)>>{
      {"aten::native_dropout", native_dropout},
      {"aten::mm.dtype", mm_dtype},
      {"aten::mm.dtype_out", mm_dtype},
      {"aten::addmm.dtype", addmm_dtype},
      {"aten::addmm.dtype_out", addmm_dtype},
      {"aten::_scaled_dot_product_efficient_attention", efficient_attention},
      {"aten::_scaled_dot_product_efficient_attention_backward", efficient_attention_backward},
      {"aten::_scaled_dot_product_flash_attention", flash_attention},
      {"aten::_scaled_dot_product_flash_attention_backward", flash_attention_backward},
      {"aten::log_sigmoid_backward", log_sigmoid_backward},
      {"aten::log_sigmoid_backward.grad_input", log_sigmoid_backward},
      {"aten::_conv_depthwise2d", depthwise},
      {"aten::_conv_depthwise2d.out", depthwise},
      {"aten::conv_depthwise3d", depthwise}};
  const auto found = all->find(operation);
  return found == all->end() ? nullptr : found->second;
}

}  // namespace cuda_sim
