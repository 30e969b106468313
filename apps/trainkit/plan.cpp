// trainkit plan: the command `plan` of a trainer.
#include "trainkit/app/plan.h"

#include <algorithm>

#include "trainkit/app/run_options.h"
#include "trainkit/command.h"
#include "trainkit/core/status.h"
#include "trainkit/report/summary.h"
#include "trainkit/trainer.h"

namespace trainkit::tool {
namespace {

/// Removes --app from `words` and returns its value. The other words are flags of the trainer, which it knows itself.
std::string take_app(std::vector<std::string>& words) {
  constexpr std::string_view kFlag = "--app";
  for (auto word = words.begin(); word != words.end(); ++word) {
    const bool is_joined = word->starts_with(std::string(kFlag) + "=");
    if (!is_joined && (*word != kFlag || std::next(word) == words.end())) continue;
    std::string name = is_joined ? word->substr(kFlag.size() + 1) : *std::next(word);
    words.erase(word, std::next(word, is_joined ? 1 : 2));
    return name;
  }
  return {};
}

}  // namespace

absl::StatusOr<int> plan_command(const Arguments& arguments) {
  ConfigParser parser(
      {.name = "trainkit plan",
       .version = library_versions()["trainkit"],
       .description = "Predicts the memory of a training step, the batch size that fits and the time of an epoch, also "
                      "for devices that this machine does not have. Runs PROGRAM plan of a trainer; its own flags may "
                      "follow --.",
       .examples = {"trainkit plan --app transformer --preset large_gpu --gpu_memory 24GiB --devices 3",
                    "trainkit plan --app ./own_trainer --gpu h100 --devices 4 -- --data_dir data",
                    "trainkit plan --app gpt2rec", "trainkit plan --app emotion -- --model_size huge --batch_size 12",
                    "trainkit plan --app hsi --gpu_memory 8GiB --json -- --data_dir hsi"},
       .help_flags = {"app", "devices", "gpu", "efficiency", "link", "workers", "row_rate", "read_gbs"},
       .shared_groups = {"Data", "Run", "Optimization", "Devices"},
       .shared_flags = {"gpu_memory", "batch_size", "global_batch_size", "shard", "json"}});
  PlanFlags flags;
  RunOptions run;
  std::string app;
  parser.add("app", &app,
             {.help = "Trainer to plan for: a name or a path.", .group = "Plan", .metavar = "NAME", .required = true});
  add_plan_flags(parser, flags);
  add_run_flags(parser, run);
  std::vector<std::string> words = arguments.flags;
  app = take_app(words);
  if (app.empty()) {  // --help and the like, or an error
    TRAINKIT_RETURN_IF_ERROR(parse_or_print(parser, arguments).status());
    return 0;
  }
  TRAINKIT_ASSIGN_OR_RETURN(const std::string program, find_trainer(parser, app));
  words.insert(words.begin(), {program, "plan"});
  words.insert(words.end(), arguments.program.begin(), arguments.program.end());
  return become(std::move(words));
}

}  // namespace trainkit::tool
