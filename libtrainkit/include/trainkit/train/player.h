#pragma once
/// Several optimizers in one step: a generator and its discriminator, a policy and its value function.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/train/loss.h"

namespace trainkit {

/// A part of the model with its own optimizer and loss. The players of a step take turns on the same batch, in their
/// order: each computes its loss with the weights that the ones before it have updated, runs backward to its own
/// parameters alone, and updates them. Parameters of other players keep their gradients and requires_grad.
///
///   std::vector<Player> players = {
///       {.name = "d", .parameters = {"discriminator.*"}, .optimizer = std::make_shared<Adam>(options),
///        .loss = [](Gan& gan, const Batch& batch, const Shared& shared) { return ...shared.at("fake").detach()...; }},
///       {.name = "g", .parameters = {"generator.*"}, .optimizer = std::make_shared<Adam>(options),
///        .loss = [](Gan& gan, const Batch&, const Shared& shared) { return ...shared.at("fake")...; }}};
///   auto trainer = Trainer::create(*devices, players, [](Gan& gan, const Batch& batch) -> Shared { ... }, options);
struct Player {
  /// Prefix of its records ("d.loss"): letters, digits and underscores. Each player has another.
  std::string name;
  /// Names of its parameters, in which * stands for any characters. Empty: those of the optimizer's groups. No
  /// parameter may belong to two players.
  std::vector<std::string> parameters = {};
  /// Without groups it gets the groups that it makes of a whole model (Optimizer::groups_for), reduced to its
  /// parameters.
  std::shared_ptr<Optimizer> optimizer = nullptr;
  /// May take the shared tensors as a third parameter, const Shared&.
  LossFunction loss = nullptr;
  /// As the options of the same names of TrainerOptions, for this player.
  std::shared_ptr<const LRSchedule> schedule = nullptr;
  double grad_clip = 0;
  double ema_decay = 0;
  /// Takes part in every n-th step: those whose number (from 1) is divisible. 1 for the first player.
  int64_t every = 1;
};

/// Computes tensors for the losses of all players of a step, once per replica and micro-batch, before the first of
/// them: Shared(Model&, const Batch&). They keep their graph, so that one player's backward may run through it while
/// another one uses them detached. With several micro-batches they must be detached.
class SharedFunction {
 public:
  SharedFunction() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): as std::function
  SharedFunction(std::nullptr_t) {}
  /// The first parameter of the callable is the user's own model type, or torch::nn::Module&.
  template <class F>
  requires(!std::is_same_v<std::decay_t<F>, SharedFunction> && detail::HasTypedParameters<F>)
      // NOLINTNEXTLINE(google-explicit-constructor, bugprone-forwarding-reference-overload): as std::function
      SharedFunction(F&& call) {
    using Call = std::decay_t<F>;
    if constexpr (std::is_invocable_r_v<Shared, Call&, torch::nn::Module&, const Batch&>) {
      call_ = std::forward<F>(call);
    } else {
      call_ = detail::of_any_model<Call>(std::forward<F>(call));
    }
  }

  Shared operator()(torch::nn::Module& model, const Batch& batch) const { return call_(model, batch); }
  explicit operator bool() const { return static_cast<bool>(call_); }

 private:
  std::function<Shared(torch::nn::Module& model, const Batch& batch)> call_;
};

}  // namespace trainkit
