#include "gpt2_recommender/export.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "gpt2_recommender/trained_vectors.h"
#include "trainkit/core/status.h"
#include "trainkit/onnx/onnx.h"

namespace trainkit::rec {
namespace {

/// The vectors of all users and items. A tower gets only numbers of known users or items, so its results can be stored.
class Towers final : public torch::nn::Module {
 public:
  explicit Towers(const RankingVectors& vectors) : torch::nn::Module("Towers") {
    users = register_buffer("user_vectors", vectors.users.to(at::kFloat).clone());
    items = register_buffer("item_vectors", vectors.items.to(at::kFloat).clone());
  }
  at::Tensor users, items;
};

std::string ids_of(const std::vector<Entity>& entities) {
  auto ids = nlohmann::json::array();
  for (const Entity& entity : entities) ids.push_back(entity.id);
  return ids.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<OnnxModel> onnx_model(const TrainedRun& run, const RecOptions& options, const std::string& tower) {
  TRAINKIT_ASSIGN_OR_RETURN(const Interactions catalog, open_catalog(run));
  TRAINKIT_ASSIGN_OR_RETURN(const RankingVectors vectors, load_vectors(run, options, catalog));
  const auto towers = std::make_shared<Towers>(vectors);
  OnnxModel model{.module = towers, .inputs = {{tower, at::zeros({1}, at::kLong)}}, .forward = nullptr};
  model.metadata["item_ids"] = ids_of(catalog.items);
  if (tower == "item") {
    model.outputs = {"vector"};
    model.forward = [towers](const auto& inputs) { return std::vector{at::embedding(towers->items, inputs[0])}; };
  } else {
    model.metadata["user_ids"] = ids_of(catalog.users);
    model.outputs = {"vector", "scores"};
    model.forward = [towers](const auto& inputs) {
      const at::Tensor user = at::embedding(towers->users, inputs[0]);
      return std::vector{user, at::linear(user, towers->items)};
    };
  }
  return model;
}

}  // namespace

AppCommand export_command(App& app, const RecOptions& options) {
  const auto tower = std::make_shared<std::string>("user");
  return trainkit::export_command(
      app, [&options, tower](const TrainedRun& run) { return onnx_model(run, options, *tower); },
      [tower](ConfigParser& parser) {
        parser.add("tower", tower.get(),
                   {.help = "user: a user's vector and the scores of all items. item: an item's vector.",
                    .choices = {"user", "item"},
                    .flag_only = true});
      },
      {"tower"});
}

}  // namespace trainkit::rec
