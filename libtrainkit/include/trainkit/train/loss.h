#pragma once
/// What a loss function may look like.

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trainkit/data/batch.h"

namespace torch::nn {
class Module;
}

namespace trainkit {

/// What a loss function returns: a scalar tensor alone, or with more.
struct LossOutput {
  // NOLINTNEXTLINE(google-explicit-constructor): `return cross_entropy(...);` is what a loss function reads like.
  LossOutput(at::Tensor loss_, double weight_ = 0) : loss(std::move(loss_)), weight(weight_) {}

  /// Scalar, the mean over what the loss counts.
  at::Tensor loss;
  /// How many things the mean is over (rows, or tokens that count); 0 stands for the rows of the batch. Accumulated
  /// micro-batches and evaluation batches are averaged by this weight.
  double weight = 0;
  /// Further means over the same things, scalars on the device, by name: logged and averaged as the loss is.
  std::vector<std::pair<std::string, at::Tensor>> metrics = {};
};

/// The loss of `batch` under a model, differentiable.
using LossFunction = std::function<LossOutput(torch::nn::Module& model, const Batch& batch)>;

namespace detail {

template <class F>
struct FirstArgument : FirstArgument<decltype(&F::operator())> {};
template <class R, class C, class A, class B>
struct FirstArgument<R (C::*)(A, B) const> {
  using type = std::remove_cvref_t<A>;
};
template <class R, class C, class A, class B>
struct FirstArgument<R (C::*)(A, B)> {
  using type = std::remove_cvref_t<A>;
};
template <class R, class A, class B>
struct FirstArgument<R (*)(A, B)> {
  using type = std::remove_cvref_t<A>;
};

}  // namespace detail

/// A LossFunction from a callable whose first parameter is the user's own model, as in
///   [](Classifier& model, const Batch& batch) { return cross_entropy(model->forward(batch["x"]), batch["y"]); }
/// where Classifier is a module holder (TORCH_MODULE) or a class derived from torch::nn::Module.
/// The LossFunction throws c10::TypeError if the model that it is called with is another.
template <class F>
LossFunction make_loss_function(F loss) {
  if constexpr (std::is_invocable_r_v<LossOutput, F&, torch::nn::Module&, const Batch&>) {
    return loss;
  } else {
    using Model = typename detail::FirstArgument<std::decay_t<F>>::type;
    if constexpr (std::is_base_of_v<torch::nn::Module, Model>) {
      return [loss = std::move(loss)](torch::nn::Module& module, const Batch& batch) mutable -> LossOutput {
        Model* model = module.as<Model>();
        TORCH_CHECK_TYPE(model, "the loss function is for another model than ", module.name());
        return loss(*model, batch);
      };
    } else {
      // The holder is made once per model: it is a shared pointer to the module that the replicator holds.
      return [loss = std::move(loss), holder = Model(nullptr)](torch::nn::Module& module,
                                                               const Batch& batch) mutable -> LossOutput {
        if (holder.is_empty() || holder.get() != &module) {
          auto typed = std::dynamic_pointer_cast<typename Model::ContainedType>(module.shared_from_this());
          TORCH_CHECK_TYPE(typed, "the loss function is for another model than ", module.name());
          holder = Model(std::move(typed));
        }
        return loss(holder, batch);
      };
    }
  }
}

}  // namespace trainkit
