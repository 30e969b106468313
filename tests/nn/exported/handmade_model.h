#pragma once
/// An exported model written by hand, as Python writes it: two linear layers with a ReLU and dropout between them.

#include <torch/torch.h>

#include <nlohmann/json.hpp>
#include <string>

#include "trainkit/core/fs.h"
#include "trainkit/io/safetensors.h"

namespace trainkit::test {

using Json = nlohmann::json;

inline Json value(int64_t number) { return Json{{"v", number}}; }

/// Values 0 to 3 are the parameters, 4 is the input.
inline Json handmade_graph(bool training) {
  Json graph = Json::parse(R"json({
    "inputs": [["parameter", "hidden.weight"], ["parameter", "hidden.bias"], ["parameter", "out.weight"],
               ["parameter", "out.bias"], ["input", 0]],
    "calls": [{"op": 0, "args": {"input": {"v": 4}, "weight": {"v": 0}, "bias": {"v": 1}}, "source": 0},
              {"op": 1, "args": {"self": {"v": 5}}},
              {"op": 2, "args": {"input": {"v": 6}, "p": 0.2}},
              {"op": 0, "args": {"input": {"v": 7}, "weight": {"v": 2}, "bias": {"v": 3}}, "source": 1}],
    "outputs": [{"v": 8}]})json");
  graph["calls"][2]["args"]["train"] = training;
  return graph;
}

/// 8 inputs, 16 hidden units, 4 outputs.
inline Json handmade_description() {
  Json description = Json::parse(R"json({
    "version": 1, "torch": "2.11.0", "class": "handmade.Net",
    "inputs": [{"name": "x", "dtype": "float32", "shape": ["s0", 8]}], "outputs": ["output"],
    "parameters": [{"name": "hidden.weight", "requires_grad": true}, {"name": "hidden.bias", "requires_grad": true},
                   {"name": "out.weight", "requires_grad": true}, {"name": "out.bias", "requires_grad": true}],
    "buffers": [], "constants": [], "ties": {},
    "operators": [
      {"name": "aten::linear", "overload": "",
       "schema": "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"},
      {"name": "aten::relu", "overload": "", "schema": "aten::relu(Tensor self) -> Tensor"},
      {"name": "aten::dropout", "overload": "",
       "schema": "aten::dropout(Tensor input, float p, bool train) -> Tensor"}],
    "sources": ["net.py:7 in forward: x = self.hidden(x)", "net.py:9 in forward: return self.out(x)"]})json");
  description["train"] = handmade_graph(true);
  description["eval"] = handmade_graph(false);
  return description;
}

inline NamedTensors handmade_tensors() {
  torch::manual_seed(4);
  return {{"hidden.weight", at::randn({16, 8}) * 0.3},
          {"hidden.bias", at::randn({16}) * 0.1},
          {"out.weight", at::randn({4, 16}) * 0.3},
          {"out.bias", at::randn({4}) * 0.1}};
}

inline absl::Status write_exported(const std::string& path, const Json& description = handmade_description(),
                                   const NamedTensors& tensors = handmade_tensors()) {
  const SafetensorsMetadata metadata = {{"format", "trainkit.model"}, {"trainkit.model", description.dump()}};
  return save_safetensors(Fs::posix(), path, tensors, metadata);
}

}  // namespace trainkit::test
