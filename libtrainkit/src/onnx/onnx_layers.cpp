// Layers of networks as ONNX operators.
#include <ATen/Functions.h>

#include <cmath>
#include <numbers>

#include "onnx/onnx_builder.h"

namespace trainkit::detail {
namespace {

/// Repeats a single value for each spatial dimension.
std::vector<int64_t> for_each_dim(std::vector<int64_t> values, size_t dims) {
  if (values.size() == 1) values.resize(dims, values[0]);
  return values;
}

/// ONNX lists the padding before each dimension, then the padding after each.
std::vector<int64_t> before_and_after(const std::vector<int64_t>& padding) {
  std::vector<int64_t> both = padding;
  both.insert(both.end(), padding.begin(), padding.end());
  return both;
}

void convolution(OnnxCall& call) {
  if (call.flag_or("transposed", false)) call.refuse("transposed");
  const auto& weight = call.value("weight").sizes;
  const size_t dims = weight.size() - 2;
  std::vector<std::string> inputs = {call.tensor("input"), call.tensor("weight")};
  if (call.has("bias")) inputs.push_back(call.tensor("bias"));
  call.finish(call.build.node("Conv", inputs,
                              {{"kernel_shape", std::vector<int64_t>(weight.begin() + 2, weight.end())},
                               {"strides", for_each_dim(call.integers("stride"), dims)},
                               {"pads", before_and_after(for_each_dim(call.integers("padding"), dims))},
                               {"dilations", for_each_dim(call.integers("dilation"), dims)},
                               {"group", call.integer("groups")}}));
}

/// x W^T + bias, as Gemm for a matrix.
void linear(OnnxCall& call) {
  const std::string x = call.tensor("input"), weight = call.tensor("weight");
  if (call.value("input").sizes.size() == 2) {
    std::vector<std::string> inputs = {x, weight};
    if (call.has("bias")) inputs.push_back(call.tensor("bias"));
    call.finish(call.build.node("Gemm", inputs, {{"transB", int64_t{1}}}));
    return;
  }
  const std::string transposed = call.build.node("Transpose", {weight}, {{"perm", std::vector<int64_t>{1, 0}}});
  const std::string product = call.build.node("MatMul", {x, transposed});
  call.finish(call.has("bias") ? call.build.node("Add", {product, call.tensor("bias")}) : product);
}

void addmm(OnnxCall& call) {
  call.finish(call.build.node("Gemm", {call.tensor("mat1"), call.tensor("mat2"), call.tensor("self")},
                              {{"alpha", static_cast<float>(call.number_or("alpha", 1))},
                               {"beta", static_cast<float>(call.number_or("beta", 1))}}));
}

void matmul(OnnxCall& call) {
  call.finish(call.build.node("MatMul", {call.tensor("self"), call.tensor(call.has("other") ? "other" : "mat2")}));
}

void batch_norm(OnnxCall& call) {
  if (call.flag_or("training", false)) call.refuse("training mode");
  call.finish(call.build.node("BatchNormalization",
                              {call.tensor("input"), call.tensor("weight"), call.tensor("bias"),
                               call.tensor("running_mean"), call.tensor("running_var")},
                              {{"epsilon", static_cast<float>(call.number_or("eps", 1e-5))}}));
}

void layer_norm(OnnxCall& call) {
  const auto dims = static_cast<int64_t>(call.integers("normalized_shape").size());
  std::vector<std::string> inputs = {call.tensor("input"), call.tensor("weight")};
  if (call.has("bias")) inputs.push_back(call.tensor("bias"));
  call.finish(call.build.node("LayerNormalization", inputs,
                              {{"axis", -dims}, {"epsilon", static_cast<float>(call.number_or("eps", 1e-5))}}));
}

void max_pool(OnnxCall& call) {
  const std::vector<int64_t> kernel = call.integers("kernel_size");
  const size_t dims = call.value("self").sizes.size() - 2;
  std::vector<int64_t> stride = call.has("stride") ? call.integers("stride") : kernel;
  if (stride.empty()) stride = kernel;
  call.finish(call.build.node("MaxPool", {call.tensor("self")},
                              {{"kernel_shape", for_each_dim(kernel, dims)},
                               {"strides", for_each_dim(stride, dims)},
                               {"pads", before_and_after(for_each_dim(call.integers("padding"), dims))},
                               {"dilations", for_each_dim(call.integers("dilation"), dims)},
                               {"ceil_mode", int64_t{call.flag_or("ceil_mode", false)}}}));
}

void adaptive_avg_pool(OnnxCall& call) {
  for (const int64_t size : call.integers("output_size")) {
    if (size != 1) call.refuse("output sizes other than 1");
  }
  call.finish(call.build.node("GlobalAveragePool", {call.tensor("self")}));
}

void dropout(OnnxCall& call) {
  if (call.flag_or("train", false) || call.flag_or("training", false)) call.refuse("training mode");
  call.finish(call.tensor("input"));
}

template <bool kLog>
void softmax(OnnxCall& call) {
  call.finish(call.build.node(kLog ? "LogSoftmax" : "Softmax", {call.operand("self", call.dtype())},
                              {{"axis", call.dim("dim")}}));
}

void gelu(OnnxCall& call) {
  OnnxBuilder& build = call.build;
  const std::string x = call.tensor("self");
  const auto number = [&](double value) { return build.scalar(value, call.dtype()); };
  const auto times = [&](const std::string& a, const std::string& b) { return build.node("Mul", {a, b}); };
  std::string inner;
  if (call.text_or("approximate", "none") == "tanh") {
    const std::string cube = times(times(x, times(x, x)), number(0.044715));
    inner = build.node("Tanh", {times(build.node("Add", {x, cube}), number(std::sqrt(2 / std::numbers::pi)))});
  } else {
    inner = build.node("Erf", {times(x, number(std::sqrt(0.5)))});
  }
  call.finish(times(times(x, number(0.5)), build.node("Add", {inner, number(1)})));
}

void embedding(OnnxCall& call) {
  call.finish(call.build.node("Gather", {call.tensor("weight"), call.tensor("indices")}, {{"axis", int64_t{0}}}));
}

/// Rows of the Fourier transform of real values: cosines of all frequencies, then negative sines, times the window;
/// (2 F, 1, n_fft) float32.
at::Tensor fourier_basis(int64_t n_fft, const at::Tensor& window) {
  const int64_t frequencies = n_fft / 2 + 1, before = (n_fft - window.numel()) / 2;
  at::Tensor padded = at::zeros({n_fft}, at::kDouble);
  padded.narrow(0, before, window.numel()).copy_(window);
  const at::Tensor times = at::arange(n_fft, at::kLong), rows = at::arange(frequencies, at::kLong);
  const at::Tensor turns = at::outer(rows, times).remainder(n_fft).to(at::kDouble) / static_cast<double>(n_fft);
  const at::Tensor angles = turns * (2 * std::numbers::pi);
  return (at::cat({angles.cos(), -angles.sin()}) * padded).to(at::kFloat).unsqueeze(1);
}

/// The short-time Fourier transform as a convolution. Its complex result is kept as pairs of numbers: (rows,
/// frequencies, columns, 2).
void stft(OnnxCall& call) {
  OnnxBuilder& build = call.build;
  const int64_t n_fft = call.integer("n_fft"), frequencies = n_fft / 2 + 1;
  if (call.flag_or("normalized", false) || !call.flag_or("onesided", true) || !call.has("window") ||
      call.value("self").sizes.size() != 2) {
    call.refuse("only (rows, samples), a window, onesided and not normalized");
  }
  const at::Tensor window = call.value("window").constant;
  if (!window.defined()) call.refuse("a window that is computed");
  std::string x = call.tensor("self");
  if (call.flag_or("center", false)) {
    const int64_t half = n_fft / 2;
    x = build.node("Pad", {x, build.integers({0, half, 0, half})}, {{"mode", std::string("reflect")}});
  }
  x = build.node("Unsqueeze", {x, build.integers({1})});
  const std::string basis = build.weight("fourier", fourier_basis(n_fft, window));
  const std::string parts = build.node("Conv", {x, basis},
                                       {{"kernel_shape", std::vector<int64_t>{n_fft}},
                                        {"strides", std::vector<int64_t>{call.integer_or("hop_length", n_fft / 4)}}});
  const std::string pairs = build.node("Reshape", {parts, build.integers({0, 2, frequencies, -1})});
  call.finish(build.node("Transpose", {pairs}, {{"perm", std::vector<int64_t>{0, 2, 3, 1}}}));
}

void view_as_real(OnnxCall& call) { call.finish(call.build.complex_parts(call.id("self"))); }

}  // namespace

const std::map<std::string, OnnxTranslation>& onnx_layer_operations() {
  static const std::map<std::string, OnnxTranslation> operations = {
      {"_convolution", convolution},
      {"convolution", convolution},
      {"conv1d", convolution},
      {"conv2d", convolution},
      {"conv3d", convolution},
      {"linear", linear},
      {"addmm", addmm},
      {"matmul", matmul},
      {"mm", matmul},
      {"bmm", matmul},
      {"batch_norm", batch_norm},
      {"layer_norm", layer_norm},
      {"max_pool1d", max_pool},
      {"max_pool2d", max_pool},
      {"max_pool3d", max_pool},
      {"adaptive_avg_pool2d", adaptive_avg_pool},
      {"adaptive_avg_pool3d", adaptive_avg_pool},
      {"dropout", dropout},
      {"softmax", softmax<false>},
      {"log_softmax", softmax<true>},
      {"gelu", gelu},
      {"embedding", embedding},
      {"stft", stft},
      {"view_as_real", view_as_real},
  };
  return operations;
}

}  // namespace trainkit::detail
