#include "gpt2_recommender/recommend.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "gpt2_recommender/catalog.h"
#include "gpt2_recommender/ranking.h"
#include "gpt2_recommender/session.h"
#include "trainkit/app/placement.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/table.h"
#include "trainkit/onnx/onnx.h"

namespace trainkit::rec {
namespace {

/// Own flags of the commands.
struct RecommendOptions {
  std::vector<std::string> user = {};
  std::string all_users = {};
  std::vector<std::string> history = {};
  std::vector<std::string> item = {};
  int64_t top_n = 20;
  std::string tower = "user";
};

/// Reads the users and items of a run. Errors: exit code 5.
absl::StatusOr<Interactions> open_catalog(const TrainedRun& run) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string catalog, run.file(kCatalogFile, "its users and items"));
  return load_entities(catalog);
}

/// Reads the items of some users; row i of the result is users[i]. Runs of earlier versions have them in the split file
/// alone.
absl::StatusOr<UserItems> open_seen(const TrainedRun& run, const Interactions& catalog,
                                    const std::vector<int64_t>& users) {
  if (const auto index = run.file(kSeenFile, ""); index.ok()) return load_seen(*index, catalog, users);
  TRAINKIT_ASSIGN_OR_RETURN(const std::string split, run.file(kSplitFile, "its interactions"));
  return seen_in_split(split, catalog, users);
}

/// Loads the model of a run and returns its vectors, on its device. Errors: exit code 5; 2 for several devices.
absl::StatusOr<RankingVectors> load_vectors(const TrainedRun& run, const RecOptions& options,
                                            const Interactions& catalog) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto metadata, read_metadata(options, catalog));
  TRAINKIT_ASSIGN_OR_RETURN(const Predictor predictor,
                            run.load([&] { return make_recommender(options, catalog, metadata); }));
  const c10::InferenceMode inference;
  return dynamic_cast<Recommender&>(predictor.model()).vectors();
}

/// Returns the numbers of the users or items with these ids. cli.value (exit code 2) names `flag` for an unknown one.
absl::StatusOr<std::vector<int64_t>> find_all(const std::vector<Entity>& entities, const std::string& flag,
                                              const std::vector<std::string>& ids) {
  std::vector<int64_t> found;
  for (const std::string& id : ids) {
    const auto at = std::find_if(entities.begin(), entities.end(), [&](const Entity& e) { return e.id == id; });
    if (at == entities.end()) {
      return to_status({.exit_code = ExitCode::kUsage,
                        .id = "cli.value",
                        .field = flag,
                        .problem = "an id that the run was not trained on",
                        .got = id,
                        .expected = fmt::format("one of {} ids, such as {}", entities.size(), entities.front().id)});
    }
    found.push_back(at - entities.begin());
  }
  return found;
}

void print_list(const std::string& title, const std::vector<Entity>& items, const std::vector<ScoredItem>& list) {
  print_line(title);
  print_line(fmt::format("{:>4}  {:<10} {:>8}  {}", "rank", "item", "score", "title"));
  for (size_t i = 0; i < list.size(); ++i) {
    const Entity& item = items[static_cast<size_t>(list[i].item)];
    print_line(fmt::format("{:>4}  {:<10} {:>8.4f}  {}", i + 1, item.id, list[i].score, item.text));
  }
}

absl::Status write_lists(const std::string& path, const Interactions& catalog,
                         const std::vector<std::vector<ScoredItem>>& lists) {
  std::string text = "user,rank,item,score,title\n";
  for (size_t user = 0; user < lists.size(); ++user) {
    for (size_t i = 0; i < lists[user].size(); ++i) {
      const Entity& item = catalog.items[static_cast<size_t>(lists[user][i].item)];
      text += fmt::format("{},{},{},{:.6g},{}\n", csv_field(catalog.users[user].id), i + 1, csv_field(item.id),
                          lists[user][i].score, csv_field(item.text));
    }
  }
  return write_file_atomically(Fs::posix(), path, text);
}

/// Recommends to a person who is not in the training data: their vector is the mean of the vectors of their items.
void recommend_to_new(const Interactions& catalog, const RankingVectors& vectors, const std::vector<int64_t>& history,
                      int64_t top_n) {
  const std::vector<int32_t> own(history.begin(), history.end());
  const UserItems seen({own}, catalog.num_items());
  const at::Tensor rows = at::tensor(history, at::kLong).to(vectors.items.device());
  const at::Tensor mean = vectors.items.index_select(0, rows).mean(0, /*keepdim=*/true);
  print_list(fmt::format("a new user with {} items", history.size()), catalog.items,
             recommend(mean, vectors.items, seen, top_n).front());
}

absl::StatusOr<int> run_recommend(const TrainedRun& run, const RecOptions& options, const RecommendOptions& asked) {
  const int ways = !asked.user.empty() + !asked.all_users.empty() + !asked.history.empty();
  if (ways != 1) {
    return bad_word("--user, --all_users or --history", ways == 0 ? "not given" : "given together", "one of the three");
  }
  if (!asked.all_users.empty()) TRAINKIT_RETURN_IF_ERROR(run.check_output(asked.all_users));
  TRAINKIT_ASSIGN_OR_RETURN(const Interactions catalog, open_catalog(run));
  TRAINKIT_ASSIGN_OR_RETURN(std::vector<int64_t> users, find_all(catalog.users, "--user", asked.user));
  TRAINKIT_ASSIGN_OR_RETURN(const auto history, find_all(catalog.items, "--history", asked.history));
  const bool all = !asked.all_users.empty();
  if (all) {
    users.resize(catalog.users.size());
    std::iota(users.begin(), users.end(), 0);
  }
  UserItems seen;
  if (history.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(seen, open_seen(run, catalog, users));
  }
  TRAINKIT_ASSIGN_OR_RETURN(const RankingVectors vectors, load_vectors(run, options, catalog));
  const c10::InferenceMode inference;
  if (!history.empty()) {
    recommend_to_new(catalog, vectors, history, asked.top_n);
    return 0;
  }
  const at::Tensor rows = at::tensor(users, at::kLong).to(vectors.users.device());
  const auto lists = recommend(vectors.users.index_select(0, rows), vectors.items, seen, asked.top_n, users);
  if (all) {
    TRAINKIT_RETURN_IF_ERROR(write_lists(asked.all_users, catalog, lists));
    print_line(fmt::format("wrote {} with {} users", asked.all_users, users.size()));
    return 0;
  }
  for (size_t i = 0; i < users.size(); ++i) {
    const Entity& user = catalog.users[static_cast<size_t>(users[i])];
    print_list(fmt::format("{}user {}{}{}", i ? "\n" : "", user.id, user.text.empty() ? "" : ": ", user.text),
               catalog.items, lists[i]);
  }
  return 0;
}

absl::StatusOr<int> run_similar(const TrainedRun& run, const RecOptions& options, const RecommendOptions& asked) {
  if (asked.item.empty()) return bad_word("--item", "not given", "an item id");
  TRAINKIT_ASSIGN_OR_RETURN(const Interactions catalog, open_catalog(run));
  TRAINKIT_ASSIGN_OR_RETURN(const auto items, find_all(catalog.items, "--item", asked.item));
  TRAINKIT_ASSIGN_OR_RETURN(const RankingVectors vectors, load_vectors(run, options, catalog));
  for (size_t i = 0; i < items.size(); ++i) {
    const Entity& item = catalog.items[static_cast<size_t>(items[i])];
    print_list(fmt::format("{}like item {}{}{}", i ? "\n" : "", item.id, item.text.empty() ? "" : ": ", item.text),
               catalog.items, similar_items(vectors.items, items[i], asked.top_n));
  }
  return 0;
}

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

void add_top_n(ConfigParser& parser, RecommendOptions& asked) {
  parser.add("top_n", &asked.top_n, {.help = "Items per list.", .min = 1, .max = 100'000, .flag_only = true});
}

}  // namespace

std::vector<std::vector<ScoredItem>> recommend(const at::Tensor& users, const at::Tensor& items, const UserItems& seen,
                                               int64_t top_n, std::span<const int64_t> numbers) {
  const at::Tensor lists = top_items(users, items, seen, std::min(top_n, items.size(0)), numbers);
  const at::Tensor rows = users.to(at::kFloat).cpu(), columns = items.to(at::kFloat).cpu();
  std::vector<std::vector<ScoredItem>> all(static_cast<size_t>(users.size(0)));
  for (int64_t user = 0; user < users.size(0); ++user) {
    const at::Tensor list = lists[user].masked_select(lists[user].ge(0)).contiguous();
    const at::Tensor scores = columns.index_select(0, list).mv(rows[user]);
    for (int64_t i = 0; i < list.size(0); ++i) {
      all[static_cast<size_t>(user)].push_back({list.const_data_ptr<int64_t>()[i], scores.const_data_ptr<float>()[i]});
    }
  }
  return all;
}

std::vector<ScoredItem> similar_items(const at::Tensor& items, int64_t item, int64_t top_n) {
  const c10::InferenceMode inference;
  const at::Tensor unit = items.to(at::kFloat) / items.to(at::kFloat).norm(2, 1, /*keepdim=*/true).clamp_min(1e-12);
  const std::vector<int32_t> self = {static_cast<int32_t>(item)};
  return recommend(unit.narrow(0, item, 1), unit, UserItems({self}, items.size(0)), top_n).front();
}

std::vector<AppCommand> recommend_commands(App& app, const RecOptions& options) {
  const auto asked = std::make_shared<RecommendOptions>();
  RunCommand recommend{
      .name = "recommend",
      .summary = "Recommends items that a user has not seen, with a trained run.",
      .examples = {"trainkit-gpt2rec recommend runs/gpt2rec --user 196 186 --top_n 20",
                   "trainkit-gpt2rec recommend runs/gpt2rec --all_users recommendations.csv",
                   "trainkit-gpt2rec recommend runs/gpt2rec --history 50 181 172"},
      .flags = {"user", "all_users", "history", "top_n", "overwrite"},
      .add_flags =
          [asked](ConfigParser& parser) {
            parser.set_help("overwrite", "Replace the file of --all_users if it exists.");
            parser.add("user", &asked->user, {.help = "Ids of users.", .metavar = "ID [ID ...]", .flag_only = true});
            parser.add("all_users", &asked->all_users,
                       {.help = "Write the lists of all users to this csv file.",
                        .path = PathKind::kOutput,
                        .metavar = "FILE",
                        .flag_only = true});
            parser.add("history", &asked->history,
                       {.help = "Ids of items that a new user likes; their vector is the mean of the items'.",
                        .metavar = "ITEM [ITEM ...]",
                        .flag_only = true});
            add_top_n(parser, *asked);
          },
      .one_device = true,
      .body = [&options, asked](TrainedRun& run) { return run_recommend(run, options, *asked); }};
  RunCommand similar{.name = "similar",
                     .summary = "Lists the items whose vectors are nearest to that of an item.",
                     .examples = {"trainkit-gpt2rec similar runs/gpt2rec --item 50 --top_n 10"},
                     .flags = {"item", "top_n"},
                     .add_flags =
                         [asked](ConfigParser& parser) {
                           parser.add("item", &asked->item,
                                      {.help = "Ids of items.", .metavar = "ID [ID ...]", .flag_only = true});
                           add_top_n(parser, *asked);
                         },
                     .one_device = true,
                     .body = [&options, asked](TrainedRun& run) { return run_similar(run, options, *asked); }};
  return {command_on_run(app, std::move(recommend)), command_on_run(app, std::move(similar)),
          export_command(
              app, [&options, asked](const TrainedRun& run) { return onnx_model(run, options, asked->tower); },
              [asked](ConfigParser& parser) {
                parser.add("tower", &asked->tower,
                           {.help = "user: a user's vector and the scores of all items. item: an item's vector.",
                            .choices = {"user", "item"},
                            .flag_only = true});
              },
              {"tower"})};
}

}  // namespace trainkit::rec
