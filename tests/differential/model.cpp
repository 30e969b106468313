#include "model.h"

#include <torch/torch.h>

#include "trainkit/core/random.h"
#include "trainkit/distributed/sync_batch_norm.h"

namespace trainkit::differential {
namespace {

/// A linear layer with the weight of an embedding.
struct TiedHead : torch::nn::Module {
  explicit TiedHead(const at::Tensor& tied)
      : weight(register_parameter("weight", tied)), bias(register_parameter("bias", at::zeros({tied.size(0)}))) {}
  at::Tensor weight, bias;
};

std::vector<int64_t> row_shape(const Spec& spec) {
  if (spec.input == "sequence") return {3, 8};
  if (spec.input == "image") return {2, 6, 6};
  return {spec.input == "tokens" ? kTokens : kFeatures};
}

}  // namespace

at::ScalarType dtype_of(const Spec& spec) { return spec.dtype == "float64" ? at::kDouble : at::kFloat; }

at::Tensor normal(const std::vector<int64_t>& shape, uint64_t key, at::ScalarType dtype) {
  at::Tensor values = at::empty(shape, at::kDouble);
  RandomStream random(key);
  double* data = values.mutable_data_ptr<double>();
  for (int64_t i = 0; i < values.numel(); ++i) data[i] = random.normal();
  return values.to(dtype);
}

int64_t outputs_of(const Spec& spec) { return spec.tied_head ? kVocabulary : kClasses; }

Net::Net(const Spec& spec) : shape_(row_shape(spec)), is_tokens_(spec.input == "tokens") {
  if (!spec.exported.empty()) {
    use_exported(spec);
    return;
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    modules_.push_back(add(spec, i));
    is_branch_.push_back(spec.layers[i].branch);
  }
  if (spec.tied_head) {
    auto* embedding = modules_.front()->as<torch::nn::EmbeddingImpl>();
    auto head = register_module("head", std::make_shared<TiedHead>(embedding->weight));
    head_ = [head](const at::Tensor& h) { return at::linear(h, head->weight, head->bias); };
  } else {
    torch::nn::Linear head(shape_.front(), kClasses);
    register_module("head", head);
    head_ = [head](const at::Tensor& h) mutable { return head->forward(h); };
  }
}

/// The layers of the exported model, under their own names.
void Net::use_exported(const Spec& spec) {
  exported_ = ExportedModel::load(spec.exported).value().ptr();
  modules_.resize(spec.layers.size());
  for (const auto& child : exported_->named_children()) {
    register_module(child.key(), child.value());
    if (child.key() != "head") modules_[std::stoul(child.key().substr(1))] = child.value();
  }
}

void Net::train(bool on) {
  Module::train(on);
  if (exported_) exported_->train(on);
}

std::shared_ptr<torch::nn::Module> Net::add(const Spec& spec, size_t i) {
  const LayerSpec& layer = spec.layers[i];
  const int64_t in = shape_.front();
  const std::string name = "l" + std::to_string(i);
  const auto use = [&](auto holder) -> std::shared_ptr<torch::nn::Module> {
    if (layer.shares == 0) register_module(name, holder);
    calls_.push_back([holder](const at::Tensor& x) mutable { return holder->forward(x); });
    return holder.ptr();
  };
  if (layer.shares > 0) {
    calls_.push_back(calls_[static_cast<size_t>(layer.shares - 1)]);
    return modules_[static_cast<size_t>(layer.shares - 1)];
  }
  if (layer.kind == "embedding") {
    shape_ = {layer.out};
    return use(torch::nn::Embedding(
        torch::nn::EmbeddingOptions(kVocabulary, layer.out).sparse(spec.optimizer == "sparse_adam")));
  }
  if (layer.kind == "linear") {
    shape_ = {layer.out};
    return use(torch::nn::Linear(torch::nn::LinearOptions(in, layer.out).bias(!layer.no_bias)));
  }
  if (layer.kind == "conv1d" || layer.kind == "conv2d") {
    shape_.front() = layer.out;
    if (layer.kind == "conv1d") {
      return use(torch::nn::Conv1d(torch::nn::Conv1dOptions(in, layer.out, 3).padding(1).bias(!layer.no_bias)));
    }
    return use(torch::nn::Conv2d(torch::nn::Conv2dOptions(in, layer.out, 3).padding(1).bias(!layer.no_bias)));
  }
  if (layer.kind == "batch_norm" && shape_.size() == 3) {
    return use(torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(in).affine(!layer.no_bias)));
  }
  if (layer.kind == "batch_norm") {
    return use(torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(in).affine(!layer.no_bias)));
  }
  if (layer.kind == "sync_batch_norm") return use(SyncBatchNorm(in));
  if (layer.kind == "group_norm") {
    return use(torch::nn::GroupNorm(torch::nn::GroupNormOptions(in % 2 == 0 ? 2 : 1, in).affine(!layer.no_bias)));
  }
  if (layer.kind == "layer_norm") return use(torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape_.back()})));
  if (layer.kind == "dropout") return use(torch::nn::Dropout(0.3));
  if (layer.kind == "random_relu") return use(torch::nn::RReLU(torch::nn::RReLUOptions().lower(0.1).upper(0.5)));
  if (layer.kind == "tanh") {
    calls_.emplace_back([](const at::Tensor& x) { return at::tanh(x); });
  } else {
    calls_.emplace_back([](const at::Tensor& x) { return at::relu(x); });
  }
  return nullptr;
}

at::Tensor Net::features(const at::Tensor& x, const at::Tensor& m) {
  at::Tensor h = x;
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (!is_branch_[i]) {
      h = calls_[i](h);
      if (is_tokens_ && i == 0) h = h.mean(1);
      continue;
    }
    const at::Tensor rows = m.nonzero().squeeze(1);
    if (rows.numel() > 0) h = h.index_add(0, rows, calls_[i](h.index_select(0, rows)).to(h.scalar_type()));
  }
  return h.dim() > 2 ? h.flatten(2).mean(2) : h;
}

std::shared_ptr<Net> make_net(const Spec& spec) {
  auto net = std::make_shared<Net>(spec);
  const at::NoGradGuard no_grad;
  uint64_t key = hash_key(spec.seed, spec.number, 1);
  for (const auto& parameter : net->named_parameters()) {
    at::Tensor tensor = parameter.value();
    // Weights of norms are near 1; others have the size of PyTorch's.
    const bool is_scale = tensor.dim() == 1 && parameter.key().ends_with("weight");
    const double fan_in = static_cast<double>(tensor.dim() > 1 ? tensor.numel() / tensor.size(0) : 4);
    const at::Tensor values = normal(tensor.sizes().vec(), ++key) * (is_scale ? 0.2 : 0.8 / std::sqrt(fan_in));
    tensor.copy_(is_scale ? values + 1 : values);
  }
  net->to(dtype_of(spec));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const auto& module = net->layer(i);
    if (!module || spec.layers[i].shares > 0) continue;
    if (spec.layers[i].eval) module->train(false);
    for (at::Tensor& parameter : module->parameters()) parameter.requires_grad_(!spec.layers[i].frozen);
  }
  return net;
}

}  // namespace trainkit::differential
