#pragma once
/// Writes models as ONNX files.
///
/// Source: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto (IR version 8, operator set 17).

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "trainkit/core/fs.h"
#include "trainkit/io/safetensors.h"

namespace trainkit::detail {

/// Version of ONNX's operators in every file.
inline constexpr int64_t kOnnxOpset = 17;

/// An operator of a graph. Inputs and outputs are names of values; "" is an absent optional input.
struct OnnxNode {
  using Attribute = std::variant<int64_t, float, std::string, std::vector<int64_t>>;
  std::string type;
  std::vector<std::string> inputs = {};
  std::vector<std::string> outputs = {};
  std::vector<std::pair<std::string, Attribute>> attributes = {};
};

/// Name, type and shape of an input or output of a graph. A size -1 depends on the number of rows: in the file it is
/// called "batch" if it is the first, and is unknown elsewhere.
struct OnnxValue {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes = {};
};

/// A model. Nodes are in an order in which they can run.
struct OnnxGraph {
  std::string name;
  std::vector<OnnxNode> nodes = {};
  NamedTensors weights = {};
  std::vector<OnnxValue> inputs = {};
  std::vector<OnnxValue> outputs = {};
  /// Text entries of the file.
  std::map<std::string, std::string> metadata = {};
};

/// Returns ONNX's number of a dtype; 0 if ONNX has none.
int32_t onnx_dtype(at::ScalarType dtype);

/// Writes the file atomically. Synchronises with the devices of the weights. Errors: exit code 6; kInvalidArgument for
/// a model over 2 GiB, the most that one file can hold, and for a dtype that ONNX lacks.
absl::Status save_onnx(const Fs& fs, const std::string& path, const OnnxGraph& graph);

}  // namespace trainkit::detail
