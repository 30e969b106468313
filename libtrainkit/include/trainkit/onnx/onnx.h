#pragma once
/// Writes models as ONNX files, which ONNX Runtime, TensorRT, OpenVINO and others run without LibTorch.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trainkit/io/safetensors.h"

namespace torch::nn {
class Module;
}

namespace trainkit {

/// A computation to write, with the names and types of its inputs and outputs.
struct OnnxModel {
  /// Evaluated in evaluation mode, without gradients. On the CPU.
  std::shared_ptr<torch::nn::Module> module;
  /// Names and examples of the inputs, on the CPU. The first dimension of each is the batch: its size is free in the
  /// file. All other sizes are fixed. One row is enough.
  NamedTensors inputs;
  /// Maps inputs to outputs. Rows must not affect each other.
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)> forward;
  /// Names of the outputs.
  std::vector<std::string> outputs = {"output"};
  /// Text entries of the file: {{"class_names", "[\"cat\", \"dog\"]"}}.
  std::map<std::string, std::string> metadata = {};
};

/// Writes a model as an ONNX file (operator set 17) with its parameters under their names. Replaces an existing file
/// atomically.
///
///   export_onnx("model.onnx", {.module = net.ptr(),
///                              .inputs = {{"images", at::zeros({1, 3, 224, 224})}},
///                              .forward = [&](const auto& in) { return std::vector{net->forward(in[0])}; }});
///
/// Calls `forward` twice with repeated rows and records LibTorch's operations. The shapes must not depend on values.
/// Blocks. Supported:
/// - layers: conv1d, conv2d, conv3d (not transposed), linear, embedding, batch_norm, layer_norm, dropout, softmax,
///   log_softmax, stft;
/// - pooling: max_pool1d, max_pool2d, max_pool3d; adaptive_avg_pool2d, adaptive_avg_pool3d (to size 1);
/// - products: matmul, mm, bmm, addmm;
/// - functions: relu, gelu, sigmoid, tanh, exp, log, sqrt, rsqrt, square, pow, abs, neg, erf, clamp;
/// - arithmetic: add, sub, mul, div, maximum, minimum, where, masked_fill, logical_not;
/// - reductions: mean, sum, var;
/// - shapes: view, reshape, flatten, unflatten, squeeze, unsqueeze, expand, permute, transpose, select, slice, narrow,
///   chunk, split, cat, stack, index_select.
///
/// Errors (exit code 2, onnx.operator; nothing is written): the first operation that cannot be expressed, by name; a
/// computation outside of LibTorch's operations that depends on the inputs. Exit code 6 if the disk fails.
absl::Status export_onnx(const std::string& path, const OnnxModel& model);

}  // namespace trainkit
