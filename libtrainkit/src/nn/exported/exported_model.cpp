#include "trainkit/nn/exported_model.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/strict_json.h"
#include "nn/exported/exported_graph.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/nn/linear.h"

namespace trainkit {
namespace detail {

/// What a file says of a model, without the weights.
struct ExportedFile {
  /// An input of a graph: a tensor of the model, or an input of the user.
  struct GraphInput {
    enum class Kind { kInput, kRegistered, kOther, kFixed } kind = Kind::kFixed;
    size_t index = 0;
  };
  struct Mode {
    std::vector<GraphInput> inputs;
    std::unique_ptr<const ExportedGraph> graph;
    std::vector<std::string> outputs;
  };
  struct Registered {
    std::string name;
    bool is_parameter = false;
    bool requires_grad = false;
    /// Set for the weight of a linear layer: whether it is (in, out) instead of (out, in).
    std::optional<bool> is_transposed = std::nullopt;
    bool is_embedding = false;  // the weight of one
  };

  std::vector<ExportedInput> inputs;
  std::vector<std::string> outputs;
  std::vector<Registered> registered;
  std::vector<std::string> others;
  std::map<std::string, std::string> ties;
  Mode train, eval;
};

}  // namespace detail

namespace {

using Json = nlohmann::json;
using detail::ExportedFile;
using detail::ExportedGraph;

constexpr char kMetadataName[] = "trainkit.model";
constexpr int kDepth = 64;  // of graphs within graphs

std::vector<ExportedInput> inputs_of(const Json& list) {
  std::vector<ExportedInput> inputs;
  for (const Json& entry : list) {
    ExportedInput input;
    input.name = entry.at("name").get<std::string>();
    input.dtype = detail::dtype_named(entry.at("dtype").get<std::string>());
    TORCH_CHECK_VALUE(!at::isComplexType(input.dtype), "has an input of dtype ", input.dtype);
    for (const Json& size : entry.at("shape")) input.shape.push_back(detail::json_integer(size).value_or(-1));
    inputs.push_back(std::move(input));
  }
  return inputs;
}

ExportedFile::Mode mode_of(const Json& json, const ExportedFile& file,
                           const std::shared_ptr<const detail::ExportedTables>& tables) {
  const auto index_of = [](const auto& list, const auto& name) {
    const auto found = std::find_if(list.begin(), list.end(), [&](const auto& one) {
      if constexpr (std::is_same_v<std::decay_t<decltype(one)>, std::string>)
        return one == name;
      else
        return one.name == name;
    });
    return found == list.end() ? std::nullopt : std::optional(static_cast<size_t>(found - list.begin()));
  };
  using Kind = ExportedFile::GraphInput::Kind;
  ExportedFile::Mode mode;
  for (const Json& entry : json.at("inputs")) {
    const auto kind = entry.at(0).get<std::string>();
    if (kind == "input") {
      const auto number = detail::json_integer(entry.at(1));
      TORCH_CHECK_VALUE(number && *number >= 0 && *number < std::ssize(file.inputs), "uses an input that it lacks");
      mode.inputs.push_back({Kind::kInput, static_cast<size_t>(*number)});
      continue;
    }
    if (kind == "fixed") {
      mode.inputs.emplace_back();
      continue;
    }
    auto name = entry.at(1).get<std::string>();
    if (const auto tie = file.ties.find(name); tie != file.ties.end()) name = tie->second;
    const auto registered = index_of(file.registered, name);
    const auto other = index_of(file.others, kind == "constant" ? "constant." + name : name);
    TORCH_CHECK_VALUE(registered || other, "uses a tensor that it lacks: ", name);
    mode.inputs.push_back({registered ? Kind::kRegistered : Kind::kOther, registered ? *registered : *other});
  }
  mode.graph = std::make_unique<const ExportedGraph>(json, std::ssize(mode.inputs), tables);
  mode.outputs = json.contains("names") ? json["names"].get<std::vector<std::string>>() : file.outputs;
  TORCH_CHECK_VALUE(mode.graph->outputs() == std::ssize(mode.outputs), "has outputs without a name");
  return mode;
}

/// Notes the parameters that are weights of linear layers in both modes, and those of embeddings.
void find_layers(ExportedFile& file) {
  const auto weights_of = [](const ExportedFile::Mode& mode) {
    std::map<size_t, bool> weights;
    for (const auto& [input, is_transposed] : mode.graph->linear_weights()) {
      const auto& [kind, index] = mode.inputs[static_cast<size_t>(input)];
      if (kind == ExportedFile::GraphInput::Kind::kRegistered) weights.emplace(index, is_transposed);
    }
    return weights;
  };
  const auto in_eval = weights_of(file.eval);
  for (const auto& weight : weights_of(file.train)) {
    ExportedFile::Registered& entry = file.registered[weight.first];
    if (in_eval.contains(weight.first) && entry.name.ends_with(".weight")) entry.is_transposed = weight.second;
  }
  for (const int64_t input : file.train.graph->embedding_weights()) {
    const auto& [kind, index] = file.train.inputs[static_cast<size_t>(input)];
    if (kind != ExportedFile::GraphInput::Kind::kRegistered) continue;
    ExportedFile::Registered& entry = file.registered[index];
    entry.is_embedding = entry.is_parameter && entry.name.ends_with(".weight");
  }
}

/// Throws c10::ValueError, or an exception of nlohmann, if the description is not valid.
std::shared_ptr<const ExportedFile> read_description(const Json& json, const ExportedModelOptions& options) {
  TORCH_CHECK_VALUE(json.at("version") == 1, "is of version ", json.at("version").dump(),
                    ", which this version of the library does not read");
  auto file = std::make_shared<ExportedFile>();
  auto tables = std::make_shared<detail::ExportedTables>();
  tables->operators = detail::find_operators(json.at("operators"), options.operators);
  tables->has_kernels = !options.exact;
  tables->sources = json.at("sources").get<std::vector<std::string>>();
  file->inputs = inputs_of(json.at("inputs"));
  file->outputs = json.at("outputs").get<std::vector<std::string>>();
  file->ties = json.at("ties").get<std::map<std::string, std::string>>();
  for (const Json& entry : json.at("parameters")) {
    file->registered.push_back({entry.at("name").get<std::string>(), true, entry.at("requires_grad").get<bool>()});
  }
  for (const Json& entry : json.at("buffers")) {
    const auto name = entry.at("name").get<std::string>();
    if (entry.at("persistent").get<bool>()) {
      file->registered.push_back({name});
    } else {
      file->others.push_back(name);
    }
  }
  for (const Json& name : json.at("constants")) file->others.push_back("constant." + name.get<std::string>());
  file->train = mode_of(json.at("train"), *file, tables);
  file->eval = mode_of(json.at("eval"), *file, tables);
  find_layers(*file);
  return file;
}

Error model_error(const std::string& path, std::string problem) {
  return {.exit_code = ExitCode::kWeights, .id = "weights.model", .where = path, .problem = std::move(problem)};
}

/// The submodule with the dotted name, made by `make` if it does not exist.
template <class Make>
torch::nn::Module& submodule(torch::nn::Module& root, std::string_view path, Make make) {
  torch::nn::Module* module = &root;
  while (!path.empty()) {
    const size_t dot = path.find('.');
    const std::string name(path.substr(0, dot));
    path = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
    std::shared_ptr<torch::nn::Module> next;
    for (const auto& child : module->named_children()) {
      if (child.key() == name) next = child.value();
    }
    if (!next && path.empty()) next = module->register_module(name, make());
    if (!next) next = module->register_module(name, std::make_shared<torch::nn::Module>());
    module = next.get();
  }
  return *module;
}

/// The module that owns a tensor.
template <class Make>
torch::nn::Module& owner_of(torch::nn::Module& root, const std::string& name, Make make) {
  const size_t dot = name.rfind('.');
  return submodule(root, dot == std::string::npos ? "" : std::string_view(name).substr(0, dot), make);
}

void register_tensor(torch::nn::Module& root, const std::string& name, const at::Tensor& tensor, bool is_parameter) {
  torch::nn::Module& owner = owner_of(root, name, [] { return std::make_shared<torch::nn::Module>(); });
  const size_t dot = name.rfind('.');
  const std::string own = dot == std::string::npos ? name : name.substr(dot + 1);
  if (is_parameter) {
    owner.register_parameter(own, tensor, tensor.requires_grad());
  } else {
    owner.register_buffer(own, tensor);
  }
}

}  // namespace

std::string to_string(const ExportedInput& input) {
  std::vector<std::string> sizes;
  for (const int64_t size : input.shape) sizes.push_back(size < 0 ? "any" : std::to_string(size));
  return fmt::format("({})", fmt::join(sizes, ", "));
}

ExportedModelImpl::ExportedModelImpl(std::shared_ptr<const ExportedFile> file, NamedTensors tensors)
    : torch::nn::Module("ExportedModel"), file_(std::move(file)) {
  std::map<std::string, at::Tensor> by_name(tensors.begin(), tensors.end());
  for (const ExportedFile::Registered& entry : file_->registered) {
    at::Tensor tensor = by_name.at(entry.name);
    if (entry.is_parameter) tensor.set_requires_grad(entry.requires_grad);
    std::shared_ptr<AdaptableImpl> layer;
    bool is_registered = false;
    if (entry.is_transposed && tensor.dim() == 2) {
      owner_of(*this, entry.name,
               [&] { return layer = std::make_shared<AdaptableImpl>(tensor, *entry.is_transposed); });
    } else if (entry.is_embedding && tensor.dim() == 2) {  // its type tells Muon that it is no matrix
      owner_of(*this, entry.name, [&] {
        is_registered = true;
        const auto options = torch::nn::EmbeddingOptions(tensor.size(0), tensor.size(1))._weight(tensor);
        return std::make_shared<torch::nn::EmbeddingImpl>(options);
      });
      tensor.set_requires_grad(entry.requires_grad);
    }
    if (!layer && !is_registered) register_tensor(*this, entry.name, tensor, entry.is_parameter);
    registered_.push_back(std::move(tensor));
    layers_.push_back(std::move(layer));
    for (const auto& [name, first] : file_->ties) {
      if (first == entry.name) register_tensor(*this, name, registered_.back(), entry.is_parameter);
    }
  }
  for (const std::string& name : file_->others) others_.push_back(by_name.at(name));
}

const std::vector<ExportedInput>& ExportedModelImpl::inputs() const { return file_->inputs; }

at::Device ExportedModelImpl::device_for(const std::vector<at::Tensor>& inputs) const {
  if (!registered_.empty()) return registered_.front().device();
  return inputs.empty() ? at::Device(at::kCPU) : inputs.front().device();
}

void ExportedModelImpl::check(const std::vector<at::Tensor>& inputs) const {
  TORCH_CHECK_VALUE(inputs.size() == file_->inputs.size(), "the model has ", file_->inputs.size(), " inputs, got ",
                    inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ExportedInput& expected = file_->inputs[i];
    const at::Tensor& input = inputs[i];
    bool fits = input.defined() && input.scalar_type() == expected.dtype && input.dim() == std::ssize(expected.shape);
    for (size_t d = 0; fits && d < expected.shape.size(); ++d) {
      fits = expected.shape[d] < 0 || expected.shape[d] == input.size(static_cast<int64_t>(d));
    }
    TORCH_CHECK_VALUE(fits, "input ", expected.name, " must be ", to_string(expected), " ", expected.dtype, ", got ",
                      input.defined()
                          ? fmt::format("({}) {}", fmt::join(input.sizes(), ", "), c10::toString(input.scalar_type()))
                          : std::string("an undefined tensor"));
  }
}

std::vector<c10::IValue> ExportedModelImpl::run(const std::vector<at::Tensor>& inputs) {
  check(inputs);
  const at::Device device = device_for(inputs);
  for (at::Tensor& other : others_) {
    if (other.device() != device) other = other.to(device);
  }
  const ExportedFile::Mode& mode = is_training() ? file_->train : file_->eval;
  std::vector<c10::IValue> values;
  values.reserve(mode.inputs.size());
  for (const auto& [kind, index] : mode.inputs) {
    using Kind = ExportedFile::GraphInput::Kind;
    if (kind == Kind::kFixed) {
      values.emplace_back();
    } else if (kind == Kind::kRegistered && layers_[index]) {
      values.emplace_back(layers_[index]->adapted_weight());
    } else {
      values.emplace_back(kind == Kind::kInput        ? inputs[index]
                          : kind == Kind::kRegistered ? registered_[index]
                                                      : others_[index]);
    }
  }
  return mode.graph->run(std::move(values), device);
}

at::Tensor ExportedModelImpl::forward(const std::vector<at::Tensor>& inputs) {
  for (c10::IValue& value : run(inputs)) {
    if (value.isTensor()) return std::move(value).toTensor();
  }
  TORCH_CHECK_VALUE(false, "the model has no output that is a tensor");
}

NamedTensors ExportedModelImpl::outputs(const std::vector<at::Tensor>& inputs) {
  NamedTensors outputs;
  std::vector<c10::IValue> values = run(inputs);
  const ExportedFile::Mode& mode = is_training() ? file_->train : file_->eval;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].isTensor()) outputs.emplace_back(mode.outputs[i], std::move(values[i]).toTensor());
  }
  return outputs;
}

NamedTensors ExportedModelImpl::outputs(const NamedTensors& inputs) {
  std::vector<at::Tensor> ordered;
  for (const ExportedInput& expected : file_->inputs) {
    const auto found =
        std::find_if(inputs.begin(), inputs.end(), [&](const auto& named) { return named.first == expected.name; });
    TORCH_CHECK_VALUE(found != inputs.end(), "input ", expected.name, " is missing");
    ordered.push_back(found->second);
  }
  TORCH_CHECK_VALUE(inputs.size() == ordered.size(), "the model has ", ordered.size(), " inputs, got ", inputs.size());
  return outputs(ordered);
}

std::shared_ptr<torch::nn::Module> ExportedModelImpl::clone(const std::optional<at::Device>& device) const {
  const c10::AutoGradMode no_grad(false);
  NamedTensors tensors;
  const auto copied = [&](const at::Tensor& tensor) {
    at::Tensor copy = tensor.detach().clone();
    return device ? copy.to(*device) : copy;
  };
  for (size_t i = 0; i < registered_.size(); ++i) {
    tensors.emplace_back(file_->registered[i].name, copied(registered_[i]));
  }
  for (size_t i = 0; i < others_.size(); ++i) tensors.emplace_back(file_->others[i], copied(others_[i]));
  auto copy = std::make_shared<ExportedModelImpl>(file_, std::move(tensors));
  for (size_t i = 0; i < registered_.size(); ++i) {
    copy->registered_[i].set_requires_grad(registered_[i].requires_grad());
    if (layers_[i]) copy->layers_[i]->copy_adapter(*layers_[i]);
  }
  copy->train(is_training());
  return copy;
}

absl::StatusOr<ExportedModel> ExportedModel::load(const std::string& path, const ExportedModelOptions& options) {
  TRAINKIT_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(path));
  const auto text = file.metadata().find(kMetadataName);
  if (text == file.metadata().end()) {
    Error error = model_error(path, "is no exported model: its metadata have no trainkit.model");
    error.hint = "write it in Python: trainkit.export_model(model, example_inputs, \"model.tkm\")";
    return to_status(error);
  }
  TRAINKIT_ASSIGN_OR_RETURN(const Json json, detail::parse_strict_json(text->second, model_error(path, {}), kDepth));
  std::shared_ptr<const ExportedFile> description;
  try {
    description = read_description(json, options);
  } catch (const c10::Error& error) {
    return to_status(model_error(path, error.what_without_backtrace()));
  } catch (const Json::exception& error) {
    return to_status(model_error(path, "its description is damaged: " + std::string(error.what())));
  } catch (const std::exception&) {  // of the parser of schemas
    return to_status(model_error(path, "its description is damaged: the schema of an operator"));
  }
  TRAINKIT_ASSIGN_OR_RETURN(NamedTensors tensors, file.tensors());
  std::map<std::string, bool> known;
  for (const auto& [name, tensor] : tensors) known.emplace(name, true);
  const auto missing = [&](const std::string& name) { return !known.contains(name); };
  for (const auto& entry : description->registered) {
    if (missing(entry.name)) return to_status(model_error(path, "lacks the tensor " + entry.name));
  }
  for (const std::string& name : description->others) {
    if (missing(name)) return to_status(model_error(path, "lacks the tensor " + name));
  }
  return ExportedModel(std::make_shared<ExportedModelImpl>(std::move(description), std::move(tensors)));
}

ExportedModel ExportedModel::copy() const {
  return ExportedModel(std::dynamic_pointer_cast<ExportedModelImpl>(get()->clone()));
}

}  // namespace trainkit
