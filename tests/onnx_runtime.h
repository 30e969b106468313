#pragma once
/// Runs ONNX files with ONNX Runtime.

#include <nlohmann/json.hpp>
#include <string>

#include "reference_util.h"
#include "trainkit/core/fs.h"
#include "trainkit/io/safetensors.h"

namespace trainkit::test {

inline bool has_onnx_runtime() { return python_has("onnx onnxruntime safetensors"); }

struct OnnxRun {
  nlohmann::json facts;  // opset, metadata, inputs, outputs, weights
  NamedTensors outputs;
  const at::Tensor& operator[](const std::string& name) const {
    for (const auto& [key, tensor] : outputs) {
      if (key == name) return tensor;
    }
    throw std::runtime_error("no output " + name);
  }
};

/// Checks the file and computes its outputs.
inline OnnxRun run_onnx(const std::string& path, const NamedTensors& inputs) {
  const TempDir dir;
  if (!save_safetensors(Fs::posix(), dir / "in", inputs).ok()) throw std::runtime_error("cannot write the inputs");
  OnnxRun run;
  run.facts = nlohmann::json::parse(run_reference("onnx_run.py", path + " " + (dir / "in") + " " + (dir / "out")));
  run.outputs = SafetensorsFile::open(dir / "out").value().tensors().value();
  return run;
}

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() ? (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>() : 1e300;
}

}  // namespace trainkit::test
