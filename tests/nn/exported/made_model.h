#pragma once
/// Writes exported models from calls of operators, as Python writes them.

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "nn/exported/handmade_model.h"
#include "trainkit/nn/exported_model.h"

namespace trainkit::test {

/// A model of one output. Parameters are those tensors that are floating point and have no name "running_...".
class MadeModel {
 public:
  struct Input {
    std::string name, dtype;
    std::vector<int64_t> shape;  // -1: any
  };

  MadeModel(NamedTensors tensors, std::vector<Input> inputs)
      : tensors_(std::move(tensors)), inputs_(std::move(inputs)) {
    for (const auto& [name, tensor] : tensors_) values_[name] = std::ssize(values_);
    for (const Input& input : inputs_) values_[input.name] = std::ssize(values_);
  }

  /// A value with a name: a tensor or an input.
  Json operator[](const std::string& name) const { return value(values_.at(name)); }
  bool is_training() const { return training_; }

  /// Calls an operator, such as "aten::mul.Tensor"; returns its result.
  Json call(const std::string& name, Json arguments) {
    const size_t dot = name.find('.');
    const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
    size_t number = 0;
    while (number < operators_.size() && operators_[number] != name) ++number;
    if (number == operators_.size()) {
      operators_.push_back(name);
      const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.substr(0, dot).c_str(), overload.c_str());
      description_["operators"].push_back(
          {{"name", name.substr(0, dot)}, {"overload", overload}, {"schema", c10::toString(op.schema())}});
    }
    calls_.push_back({{"op", number}, {"args", std::move(arguments)}});
    return value(std::ssize(values_) + std::ssize(calls_) - 1);
  }

  /// A function of Python.
  Json python(const std::string& name, Json arguments) {
    calls_.push_back({{"py", name}, {"args", std::move(arguments)}});
    return value(std::ssize(values_) + std::ssize(calls_) - 1);
  }

  /// Writes the model; `body` makes the calls and returns the output, once for each mode.
  absl::Status write(const std::string& path, const std::function<Json(MadeModel&)>& body) {
    description_["version"] = 1;
    description_["outputs"] = Json::array({"output"});
    for (const char* empty : {"constants", "sources", "parameters", "buffers", "inputs"}) {
      description_[empty] = Json::array();
    }
    description_["ties"] = Json::object();
    Json graph_inputs = Json::array();
    for (const auto& [name, tensor] : tensors_) {
      const bool is_buffer = name.find("running_") != std::string::npos || !tensor.is_floating_point();
      is_buffer ? description_["buffers"].push_back({{"name", name}, {"persistent", true}})
                : description_["parameters"].push_back({{"name", name}, {"requires_grad", true}});
      graph_inputs.push_back({is_buffer ? "buffer" : "parameter", name});
    }
    for (size_t k = 0; k < inputs_.size(); ++k) {
      Json shape = Json::array();
      for (const int64_t size : inputs_[k].shape) size < 0 ? shape.push_back("s0") : shape.push_back(size);
      description_["inputs"].push_back({{"name", inputs_[k].name}, {"dtype", inputs_[k].dtype}, {"shape", shape}});
      graph_inputs.push_back({"input", k});
    }
    for (const bool training : {true, false}) {
      training_ = training;
      calls_ = Json::array();
      const Json output = body(*this);
      description_[training ? "train" : "eval"] = {
          {"inputs", graph_inputs}, {"calls", calls_}, {"outputs", Json::array({output})}};
    }
    return write_exported(path, description_, tensors_);
  }

 private:
  NamedTensors tensors_;
  std::vector<Input> inputs_;
  std::map<std::string, int64_t> values_;
  std::vector<std::string> operators_;
  Json description_ = {{"operators", Json::array()}};
  Json calls_;
  bool training_ = true;
};

/// Batch normalisation of `x` with the model's tensors scale, shift, running_mean and running_var.
inline Json batch_norm(MadeModel& m, const Json& x) {
  return m.call("aten::batch_norm", {{"input", x},
                                     {"weight", m["scale"]},
                                     {"bias", m["shift"]},
                                     {"running_mean", m["running_mean"]},
                                     {"running_var", m["running_var"]},
                                     {"training", m.is_training()},
                                     {"momentum", 0.1},
                                     {"eps", 1e-5},
                                     {"cudnn_enabled", true}});
}

}  // namespace trainkit::test
