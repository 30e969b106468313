#pragma once
/// Defines loss functions and their results.

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trainkit/data/batch.h"

namespace torch::nn {
class Module;
}

namespace trainkit {

/// Result of a loss function: a scalar tensor, optionally with a weight and metrics.
struct LossOutput {
  // NOLINTNEXTLINE(google-explicit-constructor): so that a loss function can `return cross_entropy(...);`
  LossOutput(at::Tensor loss_, std::optional<double> weight_ = std::nullopt)
      : loss(std::move(loss_)), weight(weight_) {}

  /// Scalar: the mean over the counted items.
  at::Tensor loss;
  /// Number of items in the mean (rows, or tokens that count), finite and >= 0; by default the rows of the batch. Only
  /// the ratio to other weights matters; one that is 1e30 times that of the first micro-batches is refused.
  /// Accumulated micro-batches and evaluation batches are averaged with this weight. With weight 0 the loss and the
  /// metrics are ignored, NaN included, and may be missing.
  std::optional<double> weight = std::nullopt;
  /// Further means over the same items by name, scalars on the device. Logged and averaged like the loss. A call may
  /// leave one out: it is averaged over the batches that have it, with their weights.
  std::vector<std::pair<std::string, at::Tensor>> metrics = {};
};

/// Tensors by name that a step computes once for the losses of all players; see Player.
using Shared = std::map<std::string, at::Tensor>;

class LossFunction;
template <class F>
LossFunction make_loss_function(F loss);

namespace detail {

/// The tensors for the loss that this thread computes; empty where there are none.
const Shared& current_shared();

template <class F>
concept MayBeLoss = !std::is_same_v<std::decay_t<F>, LossFunction> &&
                    (std::is_class_v<std::decay_t<F>> || std::is_pointer_v<std::decay_t<F>>);
}  // namespace detail

/// Wraps a differentiable loss of a model and a batch: a std::function with an id. TrainStep uses the id to detect that
/// a captured step was recorded with another function. Any callable that make_loss_function accepts converts to it.
///
/// State. TrainStep and evaluate() call this object itself for the first replica, so its state (a `mutable` counter)
/// lasts as long as the object. Each further replica calls a copy, which is made at the first use and lives as long as
/// this object. Objects that the function holds by reference or pointer are shared by the threads of all replicas: they
/// need a lock, and results that do not depend on the order of the calls (ConfusionMatrix has both).
///
/// Calls. A step calls the function once per micro-batch and replica. There are two exceptions. A step that runs out of
/// memory is retried: it calls the function again for the same rows, in smaller parts, with the state that the first
/// attempt left. Its metrics count once (LossOutput::metrics). A captured step (TrainStepOptions::cuda_graph) does not
/// call the function.
class LossFunction {
 public:
  LossFunction() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): as std::function
  LossFunction(std::nullptr_t) {}
  /// As make_loss_function(call).
  template <detail::MayBeLoss F>  // leaves out LossFunction itself, which clang-tidy does not see
  // NOLINTNEXTLINE(google-explicit-constructor, bugprone-forwarding-reference-overload): as std::function
  LossFunction(F&& call) : LossFunction(make_loss_function<std::decay_t<F>>(std::forward<F>(call))) {}

  /// A copy has its own state, so it gets a new id.
  LossFunction(const LossFunction& other) : call_(other.call_), id_(next_id()) {}
  LossFunction(LossFunction&& other) noexcept
      : call_(std::exchange(other.call_, nullptr)),
        id_(std::exchange(other.id_, 0)),
        copies_(std::move(other.copies_)) {}
  LossFunction& operator=(LossFunction other) noexcept {
    call_ = std::move(other.call_);
    id_ = other.id_;
    copies_ = std::move(other.copies_);
    return *this;
  }
  ~LossFunction() = default;

  LossOutput operator()(torch::nn::Module& model, const Batch& batch) const { return call_(model, batch); }
  explicit operator bool() const { return static_cast<bool>(call_); }

  /// Unique id within the process. It is never reused, not even by a later function at the same address.
  uint64_t id() const { return id_; }

  /// Returns the function that each of `count` replicas calls: this one, then its copies. TrainStep and evaluate() call
  /// it. Not thread-safe. Valid until the next call with a larger count.
  std::vector<const LossFunction*> for_replicas(int64_t count) const;

 private:
  using Call = std::function<LossOutput(torch::nn::Module& model, const Batch& batch)>;
  LossFunction(std::in_place_t, Call call) : call_(std::move(call)), id_(next_id()) {}
  template <class F>
  friend LossFunction make_loss_function(F loss);
  static uint64_t next_id();

  Call call_;
  uint64_t id_ = 0;
  mutable std::vector<LossFunction> copies_ = {};  // of the replicas after the first
};

namespace detail {

// Declared only: decltype of a call gives the first parameter of a callable with two.
template <class R, class C, class A, class B>
std::type_identity<std::remove_cvref_t<A>> first_argument(R (C::*)(A, B) const);
template <class R, class C, class A, class B>
std::type_identity<std::remove_cvref_t<A>> first_argument(R (C::*)(A, B));
template <class R, class A, class B>
std::type_identity<std::remove_cvref_t<A>> first_argument(R (*)(A, B));
template <class R, class C, class A, class B, class S>
std::type_identity<std::remove_cvref_t<A>> first_argument(R (C::*)(A, B, S) const);
template <class R, class C, class A, class B, class S>
std::type_identity<std::remove_cvref_t<A>> first_argument(R (C::*)(A, B, S));
template <class R, class A, class B, class S>
std::type_identity<std::remove_cvref_t<A>> first_argument(R (*)(A, B, S));
template <class F>
auto first_argument(const F&) -> decltype(first_argument(&F::operator()));

/// A callable whose two or three parameters are not templates.
template <class F>
concept HasTypedParameters = requires {
  first_argument(std::declval<std::decay_t<F>>());
};

/// A callable that also takes the tensors shared by the players.
template <class F>
concept TakesShared = HasTypedParameters<F> &&
    std::is_invocable_v<F&, typename decltype(first_argument(std::declval<std::decay_t<F>>()))::type&, const Batch&,
                        const Shared&>;

/// Returns `call`, whose first parameter is the user's own model type (a module holder or its implementation), as a
/// function of any torch::nn::Module. Calling it with a model of another type throws c10::TypeError.
template <class F>
auto of_any_model(F call) {
  using Model = typename decltype(first_argument(std::declval<std::decay_t<F>>()))::type;
  using Result = std::invoke_result_t<F&, Model&, const Batch&>;
  // `auto&` instead of torch::nn::Module&: this header compiles without the definition of Module.
  return [call = std::move(call)](auto& module, const Batch& batch) mutable -> Result {
    if constexpr (std::is_base_of_v<torch::nn::Module, Model>) {
      Model* model = module.template as<Model>();
      TORCH_CHECK_TYPE(model, "the function is for another model than ", module.name());
      return call(*model, batch);
    } else {
      Model model(std::dynamic_pointer_cast<typename Model::ContainedType>(module.shared_from_this()));
      TORCH_CHECK_TYPE(!model.is_empty(), "the function is for another model than ", module.name());
      return call(model, batch);
    }
  };
}

}  // namespace detail

/// Makes a LossFunction from a callable whose first parameter is the user's own model type, as in
///   [](Classifier& model, const Batch& batch) { return cross_entropy(model->forward(batch["x"]), batch["y"]); }
/// Classifier is a module holder (TORCH_MODULE), a class derived from torch::nn::Module, or torch::nn::Module itself
/// for a loss of any model. Calling the LossFunction with a model of another type throws c10::TypeError. A mistake in
/// the parameters or in the result is one compiler error that names the remedy. A third parameter, const Shared&, gets
/// the tensors that players share, elsewhere none.
template <class F>
LossFunction make_loss_function(F loss) {
  // Each mistake ends in one error: the other branches are not compiled then.
  if constexpr (!detail::HasTypedParameters<F>) {
    static_assert(detail::HasTypedParameters<F>,
                  "a loss function names the type of its model instead of auto: "
                  "[](MyModel& model, const trainkit::Batch& batch) { ... }");
    return nullptr;
  } else if constexpr (std::is_same_v<F, LossFunction>) {
    return loss;
  } else if constexpr (detail::TakesShared<F>) {
    using Model = typename decltype(detail::first_argument(std::declval<std::decay_t<F>>()))::type;
    return make_loss_function([loss = std::move(loss)](Model& model, const Batch& batch) mutable {
      return loss(model, batch, detail::current_shared());
    });
  } else if constexpr (std::is_invocable_r_v<LossOutput, F&, torch::nn::Module&, const Batch&>) {
    return LossFunction(std::in_place, std::move(loss));
  } else {
    using Model = typename decltype(detail::first_argument(std::declval<std::decay_t<F>>()))::type;
    if constexpr (!std::is_invocable_v<F&, Model&, const Batch&>) {
      static_assert(std::is_invocable_v<F&, Model&, const Batch&>,
                    "a loss function takes the model by reference and the batch as const Batch&: "
                    "[](MyModel& model, const trainkit::Batch& batch) { ... }");
      return nullptr;
    } else if constexpr (!std::is_invocable_r_v<LossOutput, F&, Model&, const Batch&>) {
      static_assert(std::is_invocable_r_v<LossOutput, F&, Model&, const Batch&>,
                    "a loss function returns a scalar tensor or a trainkit::LossOutput");
      return nullptr;
    } else if constexpr (std::is_base_of_v<torch::nn::Module, Model>) {
      // `auto&` instead of torch::nn::Module&: this header compiles without the definition of Module.
      return LossFunction(std::in_place,
                          [loss = std::move(loss)](auto& module, const Batch& batch) mutable -> LossOutput {
                            Model* model = module.template as<Model>();
                            TORCH_CHECK_TYPE(model, "the loss function is for another model than ", module.name());
                            return loss(*model, batch);
                          });
    } else {
      // The holder is created once per model and shares the module with the replicator.
      auto call = [loss = std::move(loss), holder = Model(nullptr)](auto& module,
                                                                    const Batch& batch) mutable -> LossOutput {
        if (holder.is_empty() || holder.get() != &module) {
          auto typed = std::dynamic_pointer_cast<typename Model::ContainedType>(module.shared_from_this());
          TORCH_CHECK_TYPE(typed, "the loss function is for another model than ", module.name());
          holder = Model(std::move(typed));
        }
        return loss(holder, batch);
      };
      return LossFunction(std::in_place, std::move(call));
    }
  }
}

}  // namespace trainkit
