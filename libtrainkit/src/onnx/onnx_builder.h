#pragma once
/// Builds an ONNX graph from a trace, one operation at a time.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "onnx/onnx_file.h"
#include "onnx/onnx_trace.h"

namespace trainkit::detail {

/// Adds nodes and weights to a graph. Functions that return a string return the name of a value.
class OnnxBuilder {
 public:
  /// `names` are those of parameters and buffers, by the address of their data.
  OnnxBuilder(const Trace& trace, std::map<const void*, std::string> names, OnnxGraph& graph)
      : trace_(trace), names_(std::move(names)), graph_(graph), bound_(trace.values.size()) {}

  using Attributes = std::vector<std::pair<std::string, OnnxNode::Attribute>>;
  /// Adds a node with one output.
  std::string node(const std::string& type, std::vector<std::string> inputs, Attributes attributes = {});
  /// Adds a node with several outputs.
  std::vector<std::string> node_with_outputs(const std::string& type, std::vector<std::string> inputs, size_t outputs,
                                             Attributes attributes = {});
  /// Adds a constant tensor; its name begins with `hint`.
  std::string weight(const std::string& hint, const at::Tensor& values);
  /// A scalar, or a list of int64.
  std::string scalar(double value, at::ScalarType dtype);
  std::string integers(const std::vector<int64_t>& values);
  std::string cast(const std::string& name, at::ScalarType from, at::ScalarType to);

  const TracedValue& value(ValueId id) const { return trace_.values[id.index]; }
  /// Name of a traced value. A constant becomes a weight at its first use. Throws CannotExport for a complex value.
  std::string name_of(ValueId id);
  /// Name of a complex value (...) as pairs of real numbers (..., 2).
  std::string complex_parts(ValueId id) const { return bound_[id.index]; }
  void bind(ValueId id, const std::string& name) { bound_[id.index] = name; }

 private:
  std::string fresh(const std::string& hint);

  const Trace& trace_;
  std::map<const void*, std::string> names_;
  OnnxGraph& graph_;
  std::vector<std::string> bound_;
  int64_t count_ = 0;
};

/// A traced operation that is translated, and its arguments by name. An argument of another kind throws CannotExport.
class OnnxCall {
 public:
  OnnxCall(OnnxBuilder& builder, const TracedCall& call) : build(builder), call_(call) {}

  bool has(const std::string& name) const;
  ValueId id(const std::string& name) const;
  const TracedValue& value(const std::string& name) const { return build.value(id(name)); }
  std::string tensor(const std::string& name) const { return build.name_of(id(name)); }
  /// A tensor converted to `dtype`, or a number as a scalar.
  std::string operand(const std::string& name, at::ScalarType dtype) const;
  std::vector<ValueId> ids(const std::string& name) const;
  int64_t integer(const std::string& name) const;
  int64_t integer_or(const std::string& name, int64_t fallback) const;
  double number_or(const std::string& name, double fallback) const;
  bool flag_or(const std::string& name, bool fallback) const;
  std::string text_or(const std::string& name, const std::string& fallback) const;
  std::vector<int64_t> integers(const std::string& name) const;
  /// A dimension of argument `of`, not negative.
  int64_t dim(const std::string& name, const std::string& of = "self") const;
  /// Dimensions of "self", not negative, in ascending order; all if they are not given.
  std::vector<int64_t> dims(const std::string& name) const;

  const TracedValue& result(size_t i = 0) const { return build.value(call_.results.at(i)); }
  size_t results() const { return call_.results.size(); }
  at::ScalarType dtype() const { return result().dtype; }
  void finish(const std::string& name, size_t i = 0) { build.bind(call_.results.at(i), name); }

  [[noreturn]] void refuse(const std::string& reason) const;

  OnnxBuilder& build;

 private:
  const TracedArgument& argument(const std::string& name) const;
  const TracedCall& call_;
};

/// Translates an operation and binds its results.
using OnnxTranslation = void (*)(OnnxCall& call);
/// Operations by name: arithmetic and shapes; layers.
const std::map<std::string, OnnxTranslation>& onnx_tensor_operations();
const std::map<std::string, OnnxTranslation>& onnx_layer_operations();

}  // namespace trainkit::detail
