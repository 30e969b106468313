#pragma once
/// A PyTorch model that Python has exported, as a module that C++ trains.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainkit/io/safetensors.h"

namespace trainkit {

namespace detail {
struct ExportedFile;
}

/// An input of an exported model.
struct ExportedInput {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  /// -1: a dimension of any size.
  std::vector<int64_t> shape;
};

/// Returns the shape as a text: "(any, 8)".
std::string to_string(const ExportedInput& input);

struct ExportedModelOptions {
  /// Call LibTorch's operators only: losses have the bits of PyTorch's. Else some run on faster kernels of the library,
  /// and losses agree within rounding. On the CPU: causal attention on one product, GELU by tanh, 3 x 3 convolutions of
  /// images with at least as many positions as channels, batch normalisation with the channels innermost,
  /// cross-entropy; on a GPU embedding. Others are LibTorch's: linear layers, other convolutions and attention, layer
  /// norms, the exact GELU. All but cross-entropy have second derivatives.
  bool exact = false;
  /// Operators outside of ATen that the file may call: "mylib::op". The program has registered them.
  std::vector<std::string> operators = {};
};

class AdaptableImpl;

/// See ExportedModel.
class ExportedModelImpl : public torch::nn::Module {
 public:
  ExportedModelImpl(std::shared_ptr<const detail::ExportedFile> file, NamedTensors tensors);

  /// Returns the first output of the inputs, in the order of inputs(). The graph is that of training in training mode
  /// (train()), else that of evaluation. Operators run on the device of the parameters, to which the inputs belong.
  /// Throws c10::ValueError for inputs that do not fit, by name; an error of an operator names the line of the Python
  /// model.
  at::Tensor forward(const std::vector<at::Tensor>& inputs);
  at::Tensor forward(const at::Tensor& input) { return forward(std::vector<at::Tensor>{input}); }
  /// Returns all outputs that are tensors, with their names: those of a dict or of an output class of Hugging Face,
  /// else "output", or their numbers. Inputs by position, or by name in any order.
  NamedTensors outputs(const std::vector<at::Tensor>& inputs);
  NamedTensors outputs(const NamedTensors& inputs);

  const std::vector<ExportedInput>& inputs() const;

  /// Returns a model with its own weights, on `device` if given, in the same mode.
  std::shared_ptr<torch::nn::Module> clone(const std::optional<at::Device>& device = std::nullopt) const override;

 private:
  void check(const std::vector<at::Tensor>& inputs) const;
  std::vector<c10::IValue> run(const std::vector<at::Tensor>& inputs);
  at::Device device_for(const std::vector<at::Tensor>& inputs) const;

  std::shared_ptr<const detail::ExportedFile> file_;
  std::vector<at::Tensor> registered_;                  // parameters and persistent buffers, in the order of the file
  std::vector<std::shared_ptr<AdaptableImpl>> layers_;  // whose weight they are, or null
  std::vector<at::Tensor> others_;  // constants and other buffers, which follow the device of the inputs
};

/// A PyTorch model in a file that `trainkit.export_model(model, example_inputs, "model.tkm")` has written in Python: a
/// module like every other, for Trainer, optimizers, replicas, checkpoints. No Python is needed to run it.
///
///   ExportedModel model = ExportedModel::load("model.tkm").value();
///   auto devices = DeviceReplicator::create([&] { return model.copy(); }).value();
///   auto loss = [](ExportedModel& m, const Batch& b) { return cross_entropy(m->forward(b["x"]), b["y"]); };
///
/// Parameters and persistent buffers have their names in Python, so that state_dict files go both ways. Parameters that
/// Python has tied are one tensor. The file holds the graphs of training and evaluation as calls of ATen operators, and
/// no code: docs/formats/exported-model.md.
class ExportedModel : public torch::nn::ModuleHolder<ExportedModelImpl> {
 public:
  using torch::nn::ModuleHolder<ExportedModelImpl>::ModuleHolder;

  /// Reads a file. Errors of exit code 5 name the file and what is wrong: an operator that this LibTorch does not have
  /// or that has changed, a damaged file. Nothing runs. The model is in training mode, on the CPU.
  static absl::StatusOr<ExportedModel> load(const std::string& path, const ExportedModelOptions& options = {});

  /// Returns a model with its own weights.
  ExportedModel copy() const;
};

}  // namespace trainkit
