#pragma once
// The graph of a model that Python has exported: calls of operators in their order.

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "nn/exported/exported_operators.h"
#include "nn/exported/exported_values.h"

namespace trainkit::detail {

/// What the graphs of a file have in common. Outlives them.
struct ExportedTables {
  std::vector<ExportedOperator> operators;
  /// Lines of the model in Python: "model.py:12 in forward: x = self.fc(x)".
  std::vector<std::string> sources;
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
  int64_t outputs() const { return static_cast<int64_t>(outputs_.size()); }

 private:
  enum class Kind { kOperator, kNumber, kGraph };
  /// A graph within the graph, with its own modes.
  struct Nested {
    std::shared_ptr<const ExportedGraph> graph;
    std::optional<bool> grad;
    std::optional<bool> autocast;
    std::optional<at::ScalarType> autocast_dtype;
  };
  struct Call {
    Kind kind = Kind::kOperator;
    const ExportedOperator* op = nullptr;
    std::string number;  // a function of Python on sizes
    Nested nested = {};
    std::vector<ExportedValue> arguments = {};
    int64_t source = -1;
    std::vector<int64_t> last_uses = {};  // values that no later call uses
  };

  Call read(const nlohmann::json& json, int64_t count) const;
  void find_last_uses();
  c10::IValue run(const Call& call, const std::vector<c10::IValue>& values, at::Device device) const;
  std::string place(const Call& call, const std::vector<c10::IValue>& values, at::Device device) const;

  std::shared_ptr<const ExportedTables> tables_;
  int64_t inputs_;
  std::vector<Call> calls_;
  std::vector<ExportedValue> outputs_;
};

}  // namespace trainkit::detail
