// Describes a training step to the memory planner.
#include <fmt/format.h>

#include "gpt2_recommender/gpt2_model.h"
#include "gpt2_recommender/session.h"
#include "trainkit/optim/adam.h"

namespace trainkit::rec {
namespace {

/// Triplets in which no two rows share a user or an item, as long as there are enough: the batch that takes the most
/// memory.
class DifferentTriplets final : public Dataset {
 public:
  DifferentTriplets(int64_t rows, int64_t users, int64_t items)
      : rows_(rows),
        users_(users),
        items_(items),
        fields_{{"users", at::kLong, {}}, {"pos_items", at::kLong, {}}, {"neg_items", at::kLong, {}}} {}

  int64_t size() const override { return rows_; }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override {
    *out.row<int64_t>(0, at) = key.index % users_;
    *out.row<int64_t>(1, at) = 2 * key.index % items_;
    *out.row<int64_t>(2, at) = (2 * key.index + 1) % items_;
  }

 private:
  int64_t rows_, users_, items_;
  std::vector<FieldSpec> fields_;
};

using Change = void (*)(RecOptions& options);

/// Adds smaller models, and models without a cache, to a recipe, with the flags that select them.
void add_choices(const Session& session, StepRecipe& recipe) {
  const RecOptions& own = session.options();
  const auto add = [&](std::vector<StepRecipe::Choice>& list, std::string flag, Change change) {
    RecOptions other = own;
    change(other);
    list.emplace_back(std::move(flag), [&session, other](StepRecipe& changed) {
      changed.make_model = [&session, other] { return session.create_model(other); };
      changed.cache_bytes += session.device_tables_bytes(other) - session.device_tables_bytes(session.options());
    });
  };
  if (own.embed_dim > 1) {
    add(recipe.smaller, fmt::format("--embed_dim {}", own.embed_dim / 2), [](RecOptions& o) { o.embed_dim /= 2; });
  }
  if (own.model != "gpt2") return;
  const int64_t narrow = own.sizes.n_embd / 2;
  if (own.gpt2.empty() && narrow > 0 && narrow % own.sizes.n_head == 0) {
    add(recipe.smaller, fmt::format("--n_embd {}", narrow), [](RecOptions& o) { o.sizes.n_embd /= 2; });
  }
  if (own.gpt2.empty() && own.sizes.n_layer > 1) {
    add(recipe.smaller, fmt::format("--n_layer {}", own.sizes.n_layer / 2),
        [](RecOptions& o) { o.sizes.n_layer /= 2; });
  }
  if (!own.freeze_gpt2 && own.lora.rank == 0) {
    add(recipe.smaller, "--freeze_gpt2 --no-use_cache", [](RecOptions& o) {
      o.freeze_gpt2 = true;
      o.use_cache = false;
    });
    add(recipe.smaller, "--lora_rank 8", [](RecOptions& o) { o.lora.rank = 8; });
  }
  if (own.is_cached()) add(recipe.without_cache, "--no-use_cache", [](RecOptions& o) { o.use_cache = false; });
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const RunOptions& run, int64_t replicas, const RecOptions& options,
                                          const torch::nn::Module& model) {
  if (options.is_sparse()) return std::make_unique<SparseAdam>(SparseAdamOptions{.lr = resolve_lr(run, replicas)});
  auto optimizer =
      std::make_unique<AdamW>(AdamWOptions{.lr = resolve_lr(run, replicas), .weight_decay = run.weight_decay});
  if (!options.embedding_decay) return optimizer;
  ParamGroup embeddings{.params = {}, .weight_decay = options.embedding_decay, .name = "embeddings"};
  std::vector<ParamGroup> groups = default_param_groups(model);
  for (ParamGroup& group : groups) {
    std::vector<NamedParameter> others;
    for (NamedParameter& parameter : group.params) {
      const bool is_vector =
          parameter.name.starts_with("user_embedding") || parameter.name.starts_with("item_embedding");
      (is_vector ? embeddings.params : others).push_back(std::move(parameter));
    }
    group.params = std::move(others);
  }
  groups.insert(groups.begin(), std::move(embeddings));
  std::erase_if(groups, [](const ParamGroup& group) { return group.params.empty(); });
  optimizer->add_param_groups(std::move(groups));
  return optimizer;
}

bool leave_cache_mode(DeviceReplicator& devices) {
  bool left = false;
  for (int64_t replica = 0; replica < devices.replicas(); ++replica) {
    auto* model = dynamic_cast<Gpt2Recommender*>(devices.module(replica).get());
    left |= model && model->leave_cache_mode();
  }
  return left;
}

int64_t Session::device_tables_bytes(const RecOptions& options) const {
  const bool reads_texts = metadata_ && !options.is_cached();
  const int64_t texts = reads_texts ? static_cast<int64_t>(metadata_->ids.nbytes() + metadata_->mask.nbytes()) : 0;
  return texts + (options.negatives == "in_batch" ? interactions_.num_users() * interactions_.num_items() : 0);
}

StepRecipe Session::recipe(const Placement& placement, const TripletFeed& feed) const {
  std::vector<at::Device> devices = placement.devices;
  if (!devices.front().is_cpu()) devices.emplace_back(at::kCPU);
  StepRecipe recipe;
  recipe.make_model = [this] { return create_model(); };
  if (options_.is_sparse()) recipe.make_optimizer = [] { return std::make_unique<SparseAdam>(); };
  recipe.loss = loss(feed, devices);
  recipe.dataset =
      std::make_shared<DifferentTriplets>(feed.triplets->size(), interactions_.num_users(), interactions_.num_items());
  recipe.cache_bytes = device_tables_bytes(options_) + (feed.on_device ? feed.on_device->table_bytes() : 0);
  recipe.fill_caches = [](torch::nn::Module& module) -> std::vector<at::Tensor> {
    auto* model = dynamic_cast<Gpt2Recommender*>(&module);
    return {model ? model->fill_cache_for_recording() : at::Tensor()};
  };
  add_choices(*this, recipe);
  return recipe;
}

}  // namespace trainkit::rec
