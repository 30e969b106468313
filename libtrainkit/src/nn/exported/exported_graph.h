#pragma once
// The graph of a model that Python has exported: calls of operators in their order.

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "nn/exported/exported_kernels.h"
#include "nn/exported/exported_operators.h"
#include "nn/exported/exported_values.h"
#include "nn/exported/python_numbers.h"

namespace trainkit::detail {

/// What the graphs of a file have in common. Outlives them.
struct ExportedTables {
  std::vector<ExportedOperator> operators;
  /// Lines of the model in Python: "model.py:12 in forward: x = self.fc(x)".
  std::vector<std::string> sources;
  /// Whether calls use the library's own kernels where there are some.
  bool has_kernels = true;
};

/// Immutable: any number of threads may run it.
class ExportedGraph {
 public:
  /// Reads a graph with `inputs` inputs. Throws c10::ValueError, or an exception of nlohmann, for a graph that is not
  /// valid; nothing runs.
  ExportedGraph(const nlohmann::json& json, int64_t inputs, std::shared_ptr<const ExportedTables> tables);

  /// Runs the calls through LibTorch's dispatcher, as eager code does: autograd, autocast and redirected random numbers
  /// apply. Values are freed after their last use. A c10::Error of an operator has a context that names it, its
  /// arguments and the line of the model.
  /// @param device of literals in the graph
  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs, at::Device device) const;
  /// Inputs that are only weights of linear layers: their number, and whether they are (in, out) instead of (out, in).
  std::map<int64_t, bool> linear_weights() const;
  /// Inputs that are weights of embeddings: their numbers.
  std::set<int64_t> embedding_weights() const;
  int64_t outputs() const { return static_cast<int64_t>(outputs_.size()); }

 private:
  /// A graph within the graph, with its own modes.
  struct Nested {
    std::shared_ptr<const ExportedGraph> graph;
    std::optional<bool> grad;
    std::optional<bool> autocast;
    std::optional<at::ScalarType> autocast_dtype;
  };
  /// A call of an operator, of a function of Python on sizes, of a graph, or of nothing.
  struct Call {
    const ExportedOperator* op = nullptr;
    ExportedKernel kernel = nullptr;  // instead of the operator
    const PythonFunction* function = nullptr;
    Nested nested = {};
    std::vector<ExportedValue> arguments = {};
    int64_t source = -1;
    std::vector<int64_t> last_uses = {};  // values that no later call uses
  };

  Call read(const nlohmann::json& json, int64_t count) const;
  void find_last_uses();
  void use_kernels();
  /// Makes the call `last` and those before it one call of aten::gelu if they compute that. @param uses of each value.
  void fuse_gelu(size_t last, const std::vector<int64_t>& uses);
  /// `stack` is memory for the arguments.
  static c10::IValue run(const Call& call, const std::vector<c10::IValue>& values, at::Device device,
                         std::vector<c10::IValue>& stack);
  static c10::IValue run(const Nested& nested, std::vector<c10::IValue> arguments, at::Device device);
  std::string place(const Call& call, const std::vector<c10::IValue>& values, at::Device device) const;

  std::shared_ptr<const ExportedTables> tables_;
  int64_t inputs_;
  std::vector<Call> calls_;
  std::vector<ExportedValue> outputs_;
};

}  // namespace trainkit::detail
