#include "gpt2_recommender/session.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "trainkit/core/status.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit {
namespace {

constexpr char kSplitFile[] = "split.tsv";

/// The split of a run, which stands in its folder afterwards.
absl::StatusOr<Split> split_of(const RunOptions& run, const RecOptions& options, const Interactions& interactions,
                               const Placement& placement) {
  if (!run.resume.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath checkpoint, resolve_checkpoint(run.resume, run.output_dir));
    const std::string saved = (std::filesystem::path(checkpoint.folder).parent_path() / kSplitFile).string();
    if (std::filesystem::exists(saved)) return load_split(saved, interactions);
  }
  TRAINKIT_ASSIGN_OR_RETURN(Split split, make_split(interactions, split_options(options, run.seed)));
  if (placement.is_first() && !run.dry_run) {
    TRAINKIT_RETURN_IF_ERROR(save_split(run.output_dir + "/" + kSplitFile, interactions, split));
  }
  return split;
}

}  // namespace

absl::StatusOr<Session> Session::open(const RunOptions& run, const RecOptions& options, const Placement& placement) {
  TRAINKIT_ASSIGN_OR_RETURN(Ratings ratings, read_ratings(run.data_dir, options.data_format));
  TRAINKIT_ASSIGN_OR_RETURN(Interactions interactions,
                            filter_ratings(ratings, {.min_rating = options.min_rating, .k_core = options.k_core}));
  TRAINKIT_ASSIGN_OR_RETURN(Split split, first_rank_first(placement, "splitting the interactions", [&] {
                              return split_of(run, options, interactions, placement);
                            }));
  TRAINKIT_ASSIGN_OR_RETURN(Ranking validation,
                            Ranking::create(interactions, split, ranking_options(options, Part::kValidation)));
  TRAINKIT_ASSIGN_OR_RETURN(Ranking test, Ranking::create(interactions, split, ranking_options(options, Part::kTest)));
  ratings.rows = {};  // what is left of them are the interactions
  return Session(options, std::move(ratings), std::move(interactions), std::move(split), std::move(validation),
                 std::move(test));
}

absl::StatusOr<std::shared_ptr<const TripletDataset>> Session::triplets(Part part) const {
  return TripletDataset::create(interactions_, split_, part, negatives_of(options_));
}

std::shared_ptr<Recommender> Session::create_model() const {
  return std::make_shared<BprMf>(interactions_.num_users(), interactions_.num_items(), options_.embed_dim);
}

LossFunction Session::loss(const History& history, const std::vector<at::Device>& devices) const {
  std::vector<at::Tensor> known;  // a table on each device
  if (options_.negatives == "in_batch") {
    const at::Tensor table = history.dense();
    for (const at::Device device : devices) known.push_back(table.to(device));
  }
  return make_loss_function([known](Recommender& model, const Batch& batch) {
    const at::Tensor &users = batch["users"], &positives = batch["pos_items"];
    at::Tensor negatives = batch["neg_items"];
    for (const at::Tensor& table : known) {
      if (table.device() != users.device()) continue;
      negatives = in_batch_negatives(users, positives, negatives, table);
      break;
    }
    return LossOutput(model.loss(users, positives, negatives));
  });
}

std::string Session::describe() const {
  std::string text = fmt::format(
      "data       {} ({}): {} interactions of {} users and {} items; {} to train on, {} to watch, {} to score\n"
      "protocol   {}\n",
      ratings_.path, ratings_.format, interactions_.size(), interactions_.num_users(), interactions_.num_items(),
      split_.count(Part::kTrain), split_.count(Part::kValidation), split_.count(Part::kTest), test_.protocol());
  for (const std::string& note : ratings_.notes) text += "note       " + note + "\n";
  return text;
}

absl::StatusOr<int> write_demo_data(const std::string& folder, uint64_t seed) {
  TRAINKIT_RETURN_IF_ERROR(write_demo_ratings(folder, {.seed = seed}));
  std::fputs(fmt::format("wrote {0}/ml-1m, {0}/ml-100k and {0}/recbole\n"
                         "try: trainkit-gpt2rec --data_dir {0}/ml-1m\n",
                         folder)
                 .c_str(),
             stdout);
  return 0;
}

}  // namespace trainkit
