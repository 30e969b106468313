// Draws programs.
#include "draw.h"

#include <algorithm>

#include "dice.h"
#include "exported.h"
#include "trainkit/core/random.h"

namespace trainkit::differential {
namespace {

/// What an oracle rules out.
struct Allowed {
  bool depends_on_batch;  ///< BatchNorm in training, metrics of single batches
  bool random;            ///< dropout
  bool counts_calls;      ///< state of the loss function
};

Allowed allowed_by(const Spec& spec) {
  const bool runs_alike =
      spec.oracle == "workers" || spec.oracle == "twice" || spec.oracle == "events" || spec.oracle == "sources";
  const bool random = runs_alike || spec.oracle == "resume";
  return {.depends_on_batch = random || spec.oracle == "torch" || spec.oracle == "retry",
          .random = random,
          .counts_calls = runs_alike || spec.oracle == "torch" || spec.oracle == "replicas"};
}

/// Whether layer `layer` of a vector or of positions can follow.
LayerSpec draw_layer(Dice& dice, const Spec& spec, const Allowed& allowed, int64_t width, bool vector) {
  LayerSpec layer;
  const std::string matrix = vector ? "linear" : spec.input == "sequence" ? "conv1d" : "conv2d";
  switch (dice.between(0, 9)) {
    case 0:
    case 1:
    case 2:
    case 3:
      layer.kind = matrix;
      layer.out = dice.chance(50) ? width : dice.one_of<int64_t>({3, 4, 6, 8});
      layer.branch = layer.out == width && dice.chance(35);
      layer.no_bias = dice.chance(20);
      break;
    case 4:
    case 5:
      layer.kind = "batch_norm";
      layer.eval = !allowed.depends_on_batch || dice.chance(30);
      layer.no_bias = dice.chance(20);
      if (!layer.eval && dice.chance(30)) layer.kind = "sync_batch_norm";
      if (!allowed.depends_on_batch && dice.chance(50) && spec.oracle != "accumulation") {
        layer = {.kind = "sync_batch_norm"};
      }
      break;
    case 6:
      layer.kind = vector && dice.chance(50) ? "layer_norm" : "group_norm";
      break;
    case 7:
      layer.kind = "tanh";
      break;
    case 8:
      layer.kind = allowed.random ? dice.one({"dropout", "random_relu"}) : "relu";
      break;
    default:
      layer.kind = "relu";
  }
  return layer;
}

void draw_layers(Dice& dice, Spec& spec) {
  const Allowed allowed = allowed_by(spec);
  spec.input = dice.one({"vector", "vector", "sequence", "image", "tokens"});
  int64_t width = spec.input == "sequence" ? 3 : spec.input == "image" ? 2 : 6;
  const bool vector = spec.input == "vector" || spec.input == "tokens";
  if (spec.input == "tokens") {
    width = dice.one_of<int64_t>({4, 6});
    spec.layers.push_back({.kind = "embedding", .out = width});
    spec.tied_head = dice.chance(50);
  }
  const int64_t first_width = width;
  std::vector<int64_t> inputs(spec.layers.size());  // widths before each layer; 0: of an embedding
  const int64_t count = dice.between(1, 4);
  for (int64_t i = 0; i < count; ++i) {
    LayerSpec layer = draw_layer(dice, spec, allowed, width, vector);
    if (layer.out > 0 && spec.tied_head) layer.out = width;  // the head needs the embedding's width
    const bool has_weights = layer.out > 0 || (layer.kind.ends_with("_norm") && !layer.no_bias);
    if (has_weights && dice.chance(25)) layer.frozen = true;
    if (has_weights && dice.chance(40)) layer.change_at = dice.between(2, 4);
    if (layer.kind == "batch_norm" && layer.frozen && dice.chance(60)) layer.eval = true;
    // A layer may use the module of an earlier one of the same kind and width.
    for (size_t j = 0; j < spec.layers.size(); ++j) {
      const LayerSpec& earlier = spec.layers[j];
      const bool keeps_width = earlier.out == width && layer.out == width && inputs[j] == width;
      const bool fits = earlier.kind == layer.kind && keeps_width && earlier.shares == 0;
      if (fits && dice.chance(50)) {
        layer = {.kind = layer.kind, .out = width, .shares = static_cast<int64_t>(j) + 1, .branch = layer.branch};
        break;
      }
    }
    inputs.push_back(width);
    if (layer.out > 0) width = layer.out;
    spec.layers.push_back(layer);
  }
  // A layer that synchronises after a branch that the rows of some replicas or ranks skip.
  if ((spec.oracle == "replicas" || spec.oracle == "ranks") && dice.chance(35)) {
    const std::string matrix = vector ? "linear" : spec.input == "sequence" ? "conv1d" : "conv2d";
    spec.layers.push_back({.kind = matrix, .out = width, .branch = true});
    spec.layers.push_back({.kind = "sync_batch_norm"});
  }
  if (spec.tied_head && width != first_width) spec.tied_head = false;
}

void draw_data(Dice& dice, Spec& spec) {
  const bool divides = spec.oracle == "ranks" || spec.oracle == "shards" || spec.oracle == "accumulation";
  spec.parts = dice.between(2, 3);
  spec.batch_size = divides ? spec.parts * dice.between(2, 3) : dice.between(3, 7);
  spec.rows = dice.between(spec.batch_size, 4 * spec.batch_size);
  spec.drop_last = dice.chance(30);
  spec.sampler = dice.one({"sequential", "random", "random", "weighted", "mixture"});
  spec.dataset = dice.one({"plain", "plain", "subset", "concat"});
  if (spec.oracle != "torch" && spec.input != "tokens" && dice.chance(30)) spec.dataset = "mapped";
  spec.workers = spec.oracle == "workers" ? dice.between(1, 3) : dice.chance(10) ? 2 : 0;
  spec.accumulate = dice.chance(40) ? dice.between(2, 3) : 1;
}

void draw_loss(Dice& dice, Spec& spec) {
  const Allowed allowed = allowed_by(spec);
  spec.loss = dice.one({"mse", "cross_entropy", "huber"});
  if (dice.chance(40)) spec.weights = dice.one({"rows", "blocks", "scaled"});
  spec.state = allowed.counts_calls && dice.chance(15);
  spec.keeps = spec.oracle == "torch" && dice.chance(20);
  spec.penalty = spec.input != "tokens" && spec.dtype != "bfloat16" && dice.chance(15);
  if (dice.chance(50)) spec.metric = dice.one({"error", "sometimes", "parameter"});
  if (spec.metric == "sometimes" && !(spec.oracle == "torch" || allowed.random)) spec.metric = "error";
  if (spec.input != "tokens" && dice.chance(15)) {
    spec.skip_nonfinite = true;
    const int64_t bad = dice.between(1, 2);
    for (int64_t i = 0; i < bad; ++i) {
      const int64_t row = dice.between(0, spec.rows - 1);
      spec.bad_rows.push_back(dice.chance(50) ? row : -1 - row);
    }
  } else {
    spec.skip_nonfinite = dice.chance(10);
  }
}

void draw_loop(Dice& dice, Spec& spec) {
  spec.steps = dice.between(2, 6);
  if (dice.chance(40)) {
    spec.evaluate_every = dice.between(1, 3);
    spec.evaluation_rows = dice.between(2, 11);
  }
  if (spec.oracle == "torch" && dice.chance(20)) spec.fits = 2;
  spec.at_step = dice.between(1, spec.steps);
  if (spec.oracle == "torch" && spec.loop == "step") {
    spec.stray_backward = dice.chance(10);
    spec.two_steps = dice.chance(10);
  }
  if (spec.loop == "step") return;
  if (dice.chance(50)) {
    spec.epochs = dice.between(1, 3);
    if (dice.chance(60)) spec.steps = 0;
  }
  if (spec.evaluate_every > 0) {
    spec.early_stopping = dice.chance(45) ? dice.between(1, 2) : 0;
    spec.plateau = dice.chance(55) ? dice.between(1, 2) : 0;
    spec.best = dice.chance(40);
  }
  spec.kill = dice.chance(30);
}

void draw_oracle(Dice& dice, Spec& spec) {
  spec.oracle = dice.chance(55) ? "torch"
                                : dice.one({"replicas", "replicas", "ranks", "shards", "accumulation", "retry",
                                            "resume", "resume", "workers", "twice", "events", "sources"});
  spec.loop = spec.oracle != "accumulation" && spec.oracle != "retry" && dice.chance(40) ? "trainer" : "step";
  if (spec.oracle == "sources" || (spec.loop == "trainer" && dice.chance(40))) spec.loop = "session";
  spec.dtype = dice.chance(70) ? "float64" : dice.one({"float32", "float32", "bfloat16"});
  // Other oracles than PyTorch have no second run that says how far rounding goes.
  const bool bitwise = allowed_by(spec).random || spec.oracle == "retry";
  if (spec.oracle != "torch" && !bitwise) spec.dtype = "float64";
  spec.own_weights = spec.oracle == "replicas" && dice.chance(50);
  if (spec.oracle == "workers" || spec.oracle == "twice") spec.on_replicas = dice.chance(50);
  if (spec.oracle == "shards") spec.sharding = dice.one({"optimizer", "gradients"});
}

/// Removes what does not go together.
void settle(Spec& spec) {
  const bool low = spec.dtype != "float64";
  bool has_batch_norm = false, after_branch = false;
  for (LayerSpec& layer : spec.layers) {
    if (spec.penalty && layer.kind == "sync_batch_norm") layer = {.kind = "batch_norm", .eval = spec.oracle != "torch"};
    has_batch_norm |= layer.kind.ends_with("batch_norm") && !layer.eval;
    // A replica may get one row, which BatchNorm refuses.
    if (spec.on_replicas && layer.kind == "batch_norm") layer.kind = "sync_batch_norm", layer.no_bias = false;
    if (spec.loop != "step") layer.change_at = 0;
    if (spec.oracle == "shards") layer.change_at = 0, layer.branch = false;
    // Its backward and the reduction of the gradients change places where a rank skips the branch.
    after_branch |= layer.branch;
    if (spec.oracle == "ranks" && layer.kind == "sync_batch_norm" && after_branch)
      layer.frozen = false, layer.change_at = 0;
    // With two steps, one of them needs something to train in each half.
    if (spec.two_steps) layer.frozen = false, layer.change_at = 0, layer.branch = false;
  }
  // BatchNorm in training needs two rows in every batch, and in both parts of one that is divided. Of two rows that are
  // almost equal it enlarges the rounding of float32.
  if (has_batch_norm) {
    const int64_t least = spec.oracle == "retry" || (low && spec.oracle == "torch") ? 4 : 2;
    if (spec.oracle == "retry") spec.batch_size = std::max<int64_t>(spec.batch_size, least);
    spec.rows = std::max(spec.rows, spec.batch_size);
    while (spec.rows % spec.batch_size != 0 && spec.rows % spec.batch_size < least) ++spec.rows;
  }
  if (spec.oracle == "accumulation") {
    spec.drop_last = false;
    if (spec.metric == "sometimes") spec.metric = "error";
  }
  if (spec.oracle == "ranks" || spec.oracle == "shards")
    spec.metric = spec.metric == "sometimes" ? "error" : spec.metric;
  // Replicas, ranks and micro-batches leave out rows of weight 0, and so the branches that only those rows use.
  const auto any_layer = [&](const auto& is) { return std::any_of(spec.layers.begin(), spec.layers.end(), is); };
  const bool has_branch = any_layer([](const LayerSpec& layer) { return layer.branch; });
  const bool divides = spec.oracle == "replicas" || spec.oracle == "ranks" || spec.oracle == "shards";
  const bool leaves_out = divides || spec.oracle == "accumulation" || spec.oracle == "retry";
  if (leaves_out && has_branch && !spec.weights.empty()) spec.weights = "scaled";
  // And the rows of an embedding that only those use: their sparse gradients are zeros on one device.
  if (leaves_out && spec.optimizer == "sparse_adam" && !spec.weights.empty()) spec.weights = "scaled";
  // Sparse gradients are not divided.
  if (spec.oracle == "shards" && spec.optimizer == "sparse_adam") spec.optimizer = "adam";
  // And micro-batches: a NaN in a row of weight 0 counts only where another row of its part has a weight.
  const bool has_parts = divides || spec.oracle == "accumulation";
  if (has_parts && !spec.bad_rows.empty() && !spec.weights.empty()) spec.weights = "scaled";
  // Whether a parameter had a gradient before is not in a checkpoint.
  if (spec.oracle == "resume" && has_branch) spec.keep_grads = false;
  // A replica without rows does not call its copy of the loss function.
  if (spec.oracle == "replicas" && spec.state) spec.drop_last = true;
  if (spec.two_steps) {
    spec.ema = 0, spec.accumulate = 1, spec.tied_head = false, spec.state = false, spec.skip_nonfinite = false;
    spec.bad_rows.clear();
    if (spec.optimizer == "muon" || spec.optimizer == "sparse_adam") spec.optimizer = "adamw";
  }
  if (spec.loop != "step") {
    spec.keep_grads = false;
    if (spec.weights != "scaled" && !spec.weights.empty()) spec.metric = "";
    if (spec.clip > 0 && !spec.bad_rows.empty()) spec.skip_nonfinite = true;
  }
  if (spec.oracle == "torch" || spec.oracle == "replicas" || spec.oracle == "ranks" || spec.oracle == "shards") {
    if (spec.loop != "step" && spec.oracle != "torch") spec.best = false;
  }
  if (spec.oracle == "resume" && spec.loop == "step") spec.fits = 1;
  settle_optimizer(spec);
  // Rounding may decide between two evaluations of almost the same loss, and so a run.
  if (low && spec.oracle == "torch") spec.early_stopping = 0, spec.plateau = 0, spec.best = false;
  // An infinite statistic stays infinite in PyTorch and becomes NaN here.
  if (spec.stray_backward && has_batch_norm) spec.bad_rows.clear();
  // A batch of one row cannot be retried in parts.
  if (spec.oracle == "retry" && spec.rows % spec.batch_size == 1) ++spec.rows;
}

}  // namespace

void draw_optimizer(Dice& dice, Spec& spec) {
  spec.optimizer = dice.one({"sgd", "sgd", "adam", "adamw", "adamw", "muon", "rmsprop", "adagrad"});
  if (spec.input == "tokens" && !spec.tied_head && dice.chance(40)) spec.optimizer = "sparse_adam";
  spec.lr = spec.optimizer == "sgd" ? dice.one_of({0.02, 0.05, 0.1}) : dice.one_of({0.003, 0.01});
  if (spec.optimizer == "sgd" || spec.optimizer == "muon" || spec.optimizer == "rmsprop") {
    spec.momentum = dice.one_of({0.0, 0.9, 0.5});
    spec.nesterov = spec.optimizer != "rmsprop" && spec.momentum > 0 && dice.chance(40);
    spec.centered = spec.optimizer == "rmsprop" && dice.chance(40);
  }
  spec.beta1 = dice.one_of({0.9, 0.9, 0.5});
  spec.eps = dice.one_of({1e-8, 1e-4});
  if (spec.centered) spec.eps = 1e-4;  // a variance may be 0
  spec.weight_decay = dice.one_of({0.0, 0.01, 0.1});
  spec.groups = spec.optimizer == "muon" ? "default" : dice.one({"default", "one", "layers"});
  if (spec.optimizer == "sparse_adam") {
    spec.weight_decay = 0;
    spec.groups = dice.one({"default", "one"});
  }
  if (dice.chance(30)) spec.clip = dice.one_of({0.1, 1.0, 100.0});
  if (dice.chance(25)) spec.ema = dice.one_of({0.5, 0.9});
  spec.keep_grads = dice.chance(20);
}

void draw_schedule(Dice& dice, Spec& spec) {
  if (dice.chance(50)) return;
  spec.schedule = dice.one({"constant", "linear", "cosine", "cosine_restarts", "step", "multi_step", "exponential",
                            "polynomial", "one_cycle"});
  const int64_t steps = std::max<int64_t>(4, spec.steps > 0 ? spec.steps : 8);
  spec.warmup = dice.chance(40) ? dice.between(1, 2) : 0;
  spec.schedule_steps = dice.between(steps - 1, steps + 3) + spec.warmup;
  if (dice.chance(50)) spec.min_factor = 0.1;
  if (dice.chance(60)) spec.period = dice.between(1, 3);
  spec.growth = dice.between(1, 2);
  spec.gamma = dice.one_of({0.1, 0.5});
}

void settle_optimizer(Spec& spec) {
  const bool low = spec.dtype != "float64";
  const auto is_norm = [](const LayerSpec& layer) { return layer.kind.ends_with("_norm"); };
  const bool has_norm = std::any_of(spec.layers.begin(), spec.layers.end(), is_norm);
  // SyncBatchNorm's variance is E[x^2] - E[x]^2 in float64: Adam would enlarge its rounding in a parameter before it
  // whose true gradient is 0.
  const bool divides = spec.oracle == "replicas" || spec.oracle == "ranks" || spec.oracle == "shards";
  const auto synchronises = [](const LayerSpec& layer) { return layer.kind == "sync_batch_norm"; };
  if (divides && std::any_of(spec.layers.begin(), spec.layers.end(), synchronises)) spec.eps = 1e-4;
  // Adam moves a parameter whose true gradient is 0 (before a norm) by rounding alone.
  if (low && has_norm && spec.optimizer != "sgd") spec.optimizer = "sgd", spec.lr = 0.05;
  if (low && spec.optimizer == "muon" && spec.oracle == "torch") spec.optimizer = "adamw";
}

bool has_weights(const LayerSpec& layer) {
  const bool is_norm = layer.kind.ends_with("_norm");
  return layer.shares == 0 && (layer.out > 0 || (is_norm && !layer.no_bias));
}

Spec draw(uint64_t seed, int64_t number) {
  Dice dice(hash_key(seed, number));
  Spec spec;
  spec.seed = seed;
  spec.number = number;
  draw_oracle(dice, spec);
  draw_layers(dice, spec);
  draw_loop(dice, spec);
  draw_optimizer(dice, spec);
  draw_data(dice, spec);
  draw_schedule(dice, spec);
  draw_loss(dice, spec);
  settle(spec);
  draw_host(dice, spec);
  if (is_exported(spec)) spec.exported = kToExport;
  return spec;
}

}  // namespace trainkit::differential
