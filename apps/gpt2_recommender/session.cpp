#include "gpt2_recommender/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "gpt2_recommender/catalog.h"
#include "gpt2_recommender/gpt2_model.h"
#include "trainkit/app/app.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/gpu_kernels.h"
#include "trainkit/core/status.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit::rec {
namespace {

/// Returns the split of a run. A resumed run reads its split.tsv.
absl::StatusOr<Split> split_of(const RunOptions& run, const RecOptions& options, const Interactions& interactions) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto saved, earlier_file(run, kSplitFile));
  if (saved) return load_split(*saved, interactions);
  SplitOptions split = options.split;
  split.seed = run.seed;
  return make_split(interactions, split);
}

/// Makes GPT-2 with pretrained or random weights, and with adapters if --lora_rank is given.
absl::StatusOr<GPT2Model> make_gpt2(const RecOptions& options, const Metadata& metadata) {
  GPT2Model gpt2{nullptr};
  if (options.gpt2.empty()) {
    GPT2Config sizes = options.sizes;
    sizes.vocab_size = std::max(metadata.vocab_size, sizes.vocab_size);
    gpt2 = GPT2Model(sizes);
  } else {
    TRAINKIT_ASSIGN_OR_RETURN(gpt2, load_gpt2(options.gpt2));
    const GPT2Config& config = gpt2->config();
    if (metadata.vocab_size > config.vocab_size || metadata.max_tokens() > config.n_positions) {
      return to_status({.exit_code = ExitCode::kWeights,
                        .id = "weights.match",
                        .where = options.gpt2,
                        .problem = "this GPT-2 does not fit the texts",
                        .got = fmt::format("vocabulary {}, {} positions", config.vocab_size, config.n_positions),
                        .expected = fmt::format("at least {} and {}", metadata.vocab_size, metadata.max_tokens())});
    }
  }
  if (options.lora.rank == 0) return gpt2;
  const absl::Status applied = apply_lora(*gpt2, options.lora);
  std::optional<Error> error = error_of(applied);
  if (error && error->field == "targets") error->field = "--lora_targets";
  if (error) return to_status(*error, applied.code());
  TRAINKIT_RETURN_IF_ERROR(applied);
  return gpt2;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Metadata>> read_metadata(const RecOptions& options,
                                                              const Interactions& interactions) {
  if (options.model != "gpt2") return nullptr;
  TokenId empty = 0;
  TRAINKIT_ASSIGN_OR_RETURN(
      const auto tokenizer,
      metadata_tokenizer(interactions, options.vocab.empty() ? options.gpt2 : options.vocab, empty));
  TRAINKIT_ASSIGN_OR_RETURN(Metadata metadata,
                            tokenize_metadata(interactions, *tokenizer, options.sizes.n_positions, empty));
  return std::make_shared<const Metadata>(std::move(metadata));
}

std::shared_ptr<Recommender> make_recommender(const RecOptions& options, const Interactions& interactions,
                                              const std::shared_ptr<const Metadata>& metadata) {
  if (!metadata) {
    return std::make_shared<BprMf>(interactions.num_users(), interactions.num_items(), options.embed_dim,
                                   options.is_sparse());
  }
  return std::make_shared<Gpt2Recommender>(make_gpt2(options, *metadata).value(), metadata,
                                           Gpt2RecommenderOptions{.embed_dim = options.embed_dim,
                                                                  .freeze_gpt2 = options.is_frozen(),
                                                                  .use_cache = options.is_cached(),
                                                                  .sparse = options.is_sparse()});
}

absl::StatusOr<Session> Session::open(const RunOptions& run, const RecOptions& options) {
  Ratings ratings;
  if (options.plan_data.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(ratings, read_ratings(run.data_dir, ratings_options(options)));
  } else {
    ratings = make_demo_ratings(parse_plan_data(options.plan_data).value());
  }
  TRAINKIT_ASSIGN_OR_RETURN(Interactions interactions, filter_ratings(ratings, filter_options(options)));
  const int64_t repeats = std::ssize(ratings.rows) - interactions.size();
  if (ratings.may_repeat && options.filter.min_rating == 0 && options.filter.k_core <= 1 && repeats > 0) {
    ratings.notes.push_back(
        fmt::format("{} repeated events {}", repeats, interactions.count.empty() ? "left out" : "are trained too"));
  }
  TRAINKIT_RETURN_IF_ERROR(check_data(run, interactions.digest()));  // before the split of other data
  TRAINKIT_ASSIGN_OR_RETURN(Split split, split_of(run, options, interactions));
  // No longer needed. (`= {}` would keep the memory.)
  ratings.rows = std::vector<Rating>();
  interactions.time = std::vector<EventTime>();
  interactions.last_row = std::vector<int64_t>();
  SplitItems items(interactions, split);
  TRAINKIT_ASSIGN_OR_RETURN(Ranking validation,
                            Ranking::create(interactions, split, items, ranking_options(options, Part::kValidation)));
  TRAINKIT_ASSIGN_OR_RETURN(Ranking test,
                            Ranking::create(interactions, split, items, ranking_options(options, Part::kTest)));
  TRAINKIT_ASSIGN_OR_RETURN(auto metadata, read_metadata(options, interactions));
  return Session(options, std::move(ratings), std::move(interactions), std::move(split), std::move(items),
                 std::move(validation), std::make_shared<RankingTest>(std::move(test), options.model, options.metric),
                 std::move(metadata));
}

absl::StatusOr<std::shared_ptr<const TripletDataset>> Session::triplets(Part part) const {
  return TripletDataset::create(interactions_, split_, items_, part, negatives_of(options_));
}

std::shared_ptr<Recommender> Session::create_model(const RecOptions& options) const {
  return make_recommender(options, interactions_, metadata_);
}

absl::Status Session::save(const RunOptions& run) const {
  TRAINKIT_RETURN_IF_ERROR(save_catalog(run.output_dir + "/" + kCatalogFile, interactions_));
  TRAINKIT_RETURN_IF_ERROR(save_split(run.output_dir + "/" + kSplitFile, interactions_, split_));
  return save_seen(run.output_dir + "/" + kSeenFile, items_.of({Part::kTrain, Part::kValidation, Part::kTest}));
}

absl::StatusOr<TripletFeed> Session::feed(Part part, const RunOptions& run, const Placement& placement) const {
  TripletFeed feed;
  TRAINKIT_ASSIGN_OR_RETURN(feed.triplets, triplets(part));
  const bool has_bits = !feed.triplets->history().bits().empty();
  // On a GPU without our kernels draw() copies each batch to the host and back; the loader's workers are faster.
  const bool for_gpu = placement.device().is_cuda() ? has_gpu_kernels(placement.device())
                                                    : !placement.device().is_cpu() || !run.gpu_memory.empty();
  if (options_.draw == "device" && !has_bits) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "cli.value",
                      .field = "--draw",
                      .problem = "the history of chosen items exceeds 256 MiB",
                      .got = "device",
                      .expected = "loader"});
  }
  if (options_.draw == "device" || (options_.draw == "auto" && for_gpu && has_bits)) {
    feed.on_device = std::make_shared<const DeviceTriplets>(feed.triplets, placement.devices);
  }
  return feed;
}

LossFunction Session::loss(const TripletFeed& feed, const std::vector<at::Device>& devices) const {
  std::vector<at::Tensor> known;  // the history on each device
  if (options_.negatives == "in_batch") {
    const at::Tensor table = feed.triplets->history().dense();
    for (const at::Device device : devices) known.push_back(table.to(device));
  }
  return make_loss_function([known, on_device = feed.on_device](Recommender& model, const Batch& batch) {
    const bool is_drawn = !on_device || batch.fields().size() == 3;
    Triplets rows =
        is_drawn ? Triplets{batch["users"], batch["pos_items"], batch["neg_items"]} : on_device->draw(batch);
    for (const at::Tensor& table : known) {
      if (table.device() != rows.users.device()) continue;
      rows.negatives = in_batch_negatives(rows.users, rows.positives, rows.negatives, table);
      break;
    }
    return LossOutput(model.loss(rows.users, rows.positives, rows.negatives));
  });
}

RunFacts Session::describe() const {
  RunFacts facts = {
      {"data", fmt::format("{} ({}): {} interactions of {} users and {} items; {} training, {} validation, {} test",
                           ratings_.path, ratings_.format, interactions_.size(), interactions_.num_users(),
                           interactions_.num_items(), split_.count(Part::kTrain), split_.count(Part::kValidation),
                           split_.count(Part::kTest))},
      {"protocol", test_->protocol()}};
  if (metadata_) {
    facts.emplace_back(
        "texts", fmt::format("{} of up to {} tokens, vocabulary {}; GPT-2 {}, {}, {}", metadata_->rows(),
                             metadata_->max_tokens(), metadata_->vocab_size,
                             options_.gpt2.empty() ? "with random weights" : "from " + options_.gpt2,
                             options_.is_frozen()     ? "frozen"
                             : options_.lora.rank > 0 ? fmt::format("with adapters of rank {}", options_.lora.rank)
                                                      : "trained",
                             options_.is_cached() ? "output cached on each device" : "computed in every step"));
  }
  for (const std::string& note : ratings_.notes) facts.emplace_back("note", note);
  return facts;
}

}  // namespace trainkit::rec
