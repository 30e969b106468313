#include "onnx/onnx_file.h"

#include <fmt/format.h>

#include <protozero/pbf_writer.hpp>

#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

using protozero::pbf_writer;

constexpr int64_t kIrVersion = 8;
constexpr int64_t kMostBytes = (int64_t{2} << 30) - (1 << 20);  // of protobuf, with some room for the graph

// Field numbers of onnx.proto.
namespace model_field {
enum { kIrVersion = 1, kProducer = 2, kGraph = 7, kOpset = 8, kMetadata = 14 };
}
namespace opset_field {
enum { kVersion = 2 };
}
namespace entry_field {
enum { kKey = 1, kValue = 2 };
}
namespace graph_field {
enum { kNode = 1, kName = 2, kWeight = 5, kInput = 11, kOutput = 12 };
}
namespace node_field {
enum { kInput = 1, kOutput = 2, kName = 3, kType = 4, kAttribute = 5 };
}
namespace attribute_field {
enum { kName = 1, kFloat = 2, kInt = 3, kText = 4, kInts = 8, kType = 20 };
}
namespace attribute_type {
enum { kFloat = 1, kInt = 2, kText = 3, kInts = 7 };
}
namespace tensor_field {
enum { kDims = 1, kType = 2, kName = 8, kRaw = 9 };
}
namespace value_field {
enum { kName = 1, kType = 2 };
}
namespace type_field {
enum { kTensor = 1 };
}
namespace tensor_type_field {
enum { kDtype = 1, kShape = 2 };
}
namespace shape_field {
enum { kDim = 1 };
}
namespace dim_field {
enum { kSize = 1, kName = 2 };
}

absl::Status bad_model(const std::string& path, const std::string& field, const std::string& problem,
                       const std::string& expected) {
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "onnx.model",
                    .where = path,
                    .field = field,
                    .problem = problem,
                    .expected = expected});
}

void add_attribute(pbf_writer& node, const std::string& name, const OnnxNode::Attribute& attribute) {
  pbf_writer writer(node, node_field::kAttribute);
  writer.add_string(attribute_field::kName, name);
  if (const auto* number = std::get_if<int64_t>(&attribute)) {
    writer.add_int64(attribute_field::kInt, *number);
    writer.add_enum(attribute_field::kType, attribute_type::kInt);
  } else if (const auto* real = std::get_if<float>(&attribute)) {
    writer.add_float(attribute_field::kFloat, *real);
    writer.add_enum(attribute_field::kType, attribute_type::kFloat);
  } else if (const auto* text = std::get_if<std::string>(&attribute)) {
    writer.add_bytes(attribute_field::kText, *text);
    writer.add_enum(attribute_field::kType, attribute_type::kText);
  } else {
    for (const int64_t each : std::get<std::vector<int64_t>>(attribute)) writer.add_int64(attribute_field::kInts, each);
    writer.add_enum(attribute_field::kType, attribute_type::kInts);
  }
}

void add_node(pbf_writer& graph, const OnnxNode& node, size_t number) {
  pbf_writer writer(graph, graph_field::kNode);
  for (const std::string& name : node.inputs) writer.add_string(node_field::kInput, name);
  for (const std::string& name : node.outputs) writer.add_string(node_field::kOutput, name);
  writer.add_string(node_field::kName, fmt::format("{}_{}", node.type, number));
  writer.add_string(node_field::kType, node.type);
  for (const auto& [name, attribute] : node.attributes) add_attribute(writer, name, attribute);
}

void add_weight(pbf_writer& graph, const std::string& name, const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().cpu().contiguous();
  pbf_writer writer(graph, graph_field::kWeight);
  for (const int64_t size : values.sizes()) writer.add_int64(tensor_field::kDims, size);
  writer.add_int32(tensor_field::kType, onnx_dtype(values.scalar_type()));
  writer.add_string(tensor_field::kName, name);
  writer.add_bytes(tensor_field::kRaw, static_cast<const char*>(values.const_data_ptr()), values.nbytes());
}

void add_value(pbf_writer& graph, int field, const OnnxValue& value) {
  pbf_writer writer(graph, static_cast<protozero::pbf_tag_type>(field));
  writer.add_string(value_field::kName, value.name);
  pbf_writer type(writer, value_field::kType);
  pbf_writer tensor(type, type_field::kTensor);
  tensor.add_int32(tensor_type_field::kDtype, onnx_dtype(value.dtype));
  pbf_writer shape(tensor, tensor_type_field::kShape);
  for (size_t i = 0; i < value.sizes.size(); ++i) {
    pbf_writer dim(shape, shape_field::kDim);
    if (value.sizes[i] >= 0) dim.add_int64(dim_field::kSize, value.sizes[i]);
    if (value.sizes[i] < 0 && i == 0) dim.add_string(dim_field::kName, "batch");
  }
}

}  // namespace

int32_t onnx_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return 1;
    case at::kByte:
      return 2;
    case at::kChar:
      return 3;
    case at::kShort:
      return 5;
    case at::kInt:
      return 6;
    case at::kLong:
      return 7;
    case at::kBool:
      return 9;
    case at::kHalf:
      return 10;
    case at::kDouble:
      return 11;
    case at::kBFloat16:
      return 16;
    default:
      return 0;
  }
}

absl::Status save_onnx(const Fs& fs, const std::string& path, const OnnxGraph& graph) {
  int64_t total = 0;
  for (const auto& [name, tensor] : graph.weights) {
    total += static_cast<int64_t>(tensor.nbytes());
    if (onnx_dtype(tensor.scalar_type()) == 0) {
      return bad_model(path, name, fmt::format("ONNX has no {}", at::toString(tensor.scalar_type())),
                       "a numeric dtype");
    }
  }
  if (total > kMostBytes) {
    return bad_model(path, "", fmt::format("{} bytes of weights do not fit into an ONNX file", total), "at most 2 GiB");
  }
  std::string bytes;
  bytes.reserve(static_cast<size_t>(total) + (1 << 20));
  pbf_writer model(bytes);
  model.add_int64(model_field::kIrVersion, kIrVersion);
  model.add_string(model_field::kProducer, "trainkit");
  {
    pbf_writer writer(model, model_field::kGraph);
    for (size_t i = 0; i < graph.nodes.size(); ++i) add_node(writer, graph.nodes[i], i);
    writer.add_string(graph_field::kName, graph.name);
    for (const auto& [name, tensor] : graph.weights) add_weight(writer, name, tensor);
    for (const OnnxValue& input : graph.inputs) add_value(writer, graph_field::kInput, input);
    for (const OnnxValue& output : graph.outputs) add_value(writer, graph_field::kOutput, output);
  }
  pbf_writer(model, model_field::kOpset).add_int64(opset_field::kVersion, kOnnxOpset);
  for (const auto& [key, value] : graph.metadata) {
    pbf_writer entry(model, model_field::kMetadata);
    entry.add_string(entry_field::kKey, key);
    entry.add_string(entry_field::kValue, value);
  }
  return write_file_atomically(fs, path, bytes);
}

}  // namespace trainkit::detail
