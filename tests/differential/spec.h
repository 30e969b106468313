#pragma once
/// A training program as data: what `differential` draws, runs, shrinks and prints.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace trainkit::differential {

/// A layer of the model. Zero and empty values mean "not used", so that shrinking tends towards them.
struct LayerSpec {
  /// linear, conv1d, conv2d, embedding, batch_norm, sync_batch_norm, group_norm, layer_norm, dropout, random_relu,
  /// relu, tanh.
  std::string kind = "relu";
  int64_t out = 0;        ///< output features or channels
  bool no_bias = false;   ///< of linear and convolutions; weight and bias of norms
  bool eval = false;      ///< stays in evaluation mode
  bool frozen = false;    ///< requires_grad is false from the start
  int64_t change_at = 0;  ///< step before which requires_grad changes; 0: never
  int64_t shares = 0;     ///< 1 + number of the earlier layer whose module this layer uses
  bool branch = false;    ///< added to its input, for the rows with m = 1; skipped if a batch has none
  int64_t player = 0;     ///< which trains it
};

/// A player after the first one, which has the fields of the same names of Spec.
struct PlayerSpec {
  std::string optimizer = "sgd";
  double lr = 0.05;
  double momentum = 0;
  bool nesterov = false;
  bool centered = false;
  double beta1 = 0.9;
  double eps = 1e-8;
  double weight_decay = 0;
  std::string groups = "default";
  int64_t thaw_at = 0;
  std::string schedule = "";
  int64_t schedule_steps = 0;
  int64_t warmup = 0;
  double min_factor = 0;
  int64_t period = 0;
  int64_t growth = 1;
  double gamma = 0.1;
  double clip = 0;
  double ema = 0;
  std::string loss = "mse";
  double factor = 1;
  std::string shared = "";
  int64_t every = 1;  ///< takes part in the steps that are divisible
};

/// A call of Session::set_lr or set_trainable.
struct ChangeSpec {
  int64_t after = 1;        ///< steps done before it
  std::string what = "lr";  ///< lr, freeze, thaw
  int64_t player = 0;       ///< of lr
  std::string group = "";   ///< of lr; empty: all groups
  double lr = 0.01;
  int64_t layer = 0;  ///< of freeze and thaw
};

/// A buffer of rows that the program makes, of one rank.
struct BufferSpec {
  int64_t capacity = 8;  ///< these six of a ReplayBuffer
  int64_t min_size = 1;
  double samples_per_insert = 1;  ///< in quarters
  int64_t append = 1;             ///< rows at a time
  bool in_place = false;          ///< reserve and commit, instead of append
  bool gives_up = false;          ///< some rows are reserved and given up
  bool thread = false;            ///< appends from another thread
  int64_t horizon = 2;            ///< these seven of a RolloutBuffer
  int64_t simulators = 2;
  int64_t passes = 1;  ///< over the rows of a rollout
  double discount = 1;
  double lambda = 1;
  bool normalize = false;  ///< the advantages of each batch
  bool fills = false;      ///< between steps, instead of in collect_with
};

struct Spec {
  uint64_t seed = 0;
  int64_t number = 0;
  /// torch: compared with PyTorch. Others: compared with the library itself on one device with the whole batch
  /// (replicas, ranks, shards, accumulation, retry), with an undisturbed run (resume, workers, twice), without events
  /// (events) or with a Prefetcher as source (sources).
  std::string oracle = "torch";
  std::string loop = "step";      ///< step: TrainStep; trainer: Trainer::fit; session: Trainer::begin
  std::string dtype = "float64";  ///< float64, float32, bfloat16 (autocast)

  std::string input = "vector";  ///< vector, sequence, image, tokens
  std::vector<LayerSpec> layers;
  bool tied_head = false;  ///< the last layer uses the embedding's weight
  std::string exported;    ///< not empty: Python exports the model; while the program is checked, the file

  int64_t rows = 8;
  int64_t batch_size = 4;
  bool drop_last = false;
  std::string sampler = "sequential";  ///< sequential, random, weighted, mixture
  std::string dataset = "plain";       ///< plain, subset, concat, mapped
  int64_t workers = 0;
  /// Of a session: empty (Prefetcher), queue (QueueSource), batches (Session::step(batch)), replay (ReplayBuffer),
  /// drawn (the batches of a ReplayBuffer, by Session::step(batch)). Also of Trainer::fit: rollout (RolloutBuffer).
  std::string source = "";
  BufferSpec buffer;  ///< of replay and rollout

  int64_t steps = 2;
  int64_t epochs = 0;  ///< of the Trainer; 0: `steps` is its limit
  int64_t fits = 1;    ///< calls of fit, or schedulers and steps one after the other
  int64_t accumulate = 1;
  std::string optimizer = "sgd";  ///< sgd, adam, adamw, muon, rmsprop, adagrad, sparse_adam (with a sparse embedding)
  double lr = 0.05;
  double momentum = 0;
  bool nesterov = false;
  bool centered = false;  ///< of rmsprop
  double beta1 = 0.9;
  double eps = 1e-8;
  double weight_decay = 0;
  std::string groups = "default";  ///< default, one, layers (own rates)
  int64_t thaw_at = 0;             ///< ParamGroup::trainable_from of every other group of "layers"
  std::string schedule = "";       ///< empty, or a name of schedule_names()
  int64_t schedule_steps = 0;
  int64_t warmup = 0;
  double min_factor = 0;
  int64_t period = 0;
  int64_t growth = 1;
  double gamma = 0.1;
  int64_t plateau = 0;  ///< 1 + patience
  double clip = 0;
  double ema = 0;
  bool keep_grads = false;  ///< zero_grad_set_to_none = false

  bool skip_nonfinite = false;
  std::vector<int64_t> bad_rows;  ///< rows with NaN; negative: infinity in row -1 - i

  std::string loss = "mse";  ///< mse, cross_entropy, huber
  double factor = 1;         ///< of the loss
  std::string weights = "";  ///< empty; rows: own weights, some 0; blocks: whole batches of weight 0; scaled
  bool state = false;        ///< the loss function counts its calls
  bool keeps = false;        ///< it keeps tensors of its batches
  bool penalty = false;      ///< it adds a norm of gradients (second derivative)
  std::string metric = "";   ///< empty, error, sometimes, parameter
  int64_t evaluate_every = 0;
  int64_t evaluation_rows = 0;
  int64_t early_stopping = 0;
  bool best = false;            ///< keeps the weights of the best evaluation and ends with them
  bool two_steps = false;       ///< two TrainSteps over one model, each with half of the parameters
  bool stray_backward = false;  ///< the user's own backward between steps

  std::vector<PlayerSpec> players;  ///< after the first one; empty: one optimizer without players
  int64_t head_player = 0;          ///< which trains the head
  /// How the loss of a player uses the features that the players share: empty (not at all), graph, detached.
  std::string shared = "";
  std::vector<ChangeSpec> changes;  ///< of a session
  bool events = false;              ///< reads gradients in on_gradients, losses in Events::on_step

  int64_t parts = 2;  ///< replicas, ranks or micro-batches of the other side
  bool own_weights = false;
  bool on_replicas = false;   ///< twice, workers: both runs have `parts` replicas
  std::string sharding = "";  ///< empty, optimizer, gradients
  int64_t at_step = 1;        ///< of the failure, kill or resume
  bool kill = false;          ///< SIGKILL instead of an exception
};

/// JSON of a spec without the fields that have their default: short enough for a line of a test.
nlohmann::json to_short_json(const Spec& spec);
nlohmann::json full_json(const Spec& spec);
Spec spec_from_json(const nlohmann::json& json);

/// The program as its player `player` sees it: with the optimizer, loss and schedule of that one.
Spec of_player(const Spec& spec, int64_t player);
/// The settings of `spec` that a player can have.
PlayerSpec settings_of(const Spec& spec);
int64_t player_count(const Spec& spec);
/// Whether a player uses shared features.
bool has_shared(const Spec& spec);

/// Draws program `number` of `seed`: the same on every platform.
Spec draw(uint64_t seed, int64_t number);

}  // namespace trainkit::differential
