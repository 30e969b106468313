#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "trainkit/command.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/format.h"
#include "trainkit/logging/summary.h"
#include "trainkit/memory/batch_size_planner.h"
#include "trainkit/trainer.h"

namespace trainkit::tool {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  std::string app = {}, preset = {}, gpu_memory = {};
  int64_t devices = 1;
  std::optional<int64_t> global_batch_size = {};
  bool json = false;
};

void add_flags(ConfigParser& parser, Flags& flags) {
  parser.add("app", &flags.app,
             {.help = "Trainer to plan for; what follows -- are its flags.", .metavar = "NAME", .required = true});
  parser.add("gpu_memory", &flags.gpu_memory,
             {.help = "Memory of each device, as in 24GiB; unset, what is free here.", .metavar = "SIZE"});
  parser.add("devices", &flags.devices, {.help = "Devices, which need not be here.", .min = 1, .max = 1 << 20});
  parser.add("global_batch_size", &flags.global_batch_size,
             {.help = "Rows of a step over all devices and accumulation.", .min = 1, .max = 1 << 30});
  parser.add("json", &flags.json, {.help = "JSON instead of a table.", .flag_only = true});
}

/// Takes --preset out of `words`: it names one of the trainer's, which this program does not know.
std::string take_preset(std::vector<std::string>& words) {
  constexpr std::string_view kFlag = "--preset";
  for (auto word = words.begin(); word != words.end(); ++word) {
    const bool joined = word->starts_with(std::string(kFlag) + "=");
    if (!joined && (*word != kFlag || std::next(word) == words.end())) continue;
    const std::string name = joined ? word->substr(kFlag.size() + 1) : *std::next(word);
    words.erase(word, std::next(word, joined ? 1 : 2));
    return name;
  }
  return {};
}

/// What the guide of a trainer says of its example, per device: each class of memory, in words.
struct GuideTable {
  const char* example;
  std::vector<std::pair<const char*, const char*>> lines;
};
const GuideTable* guide_table(const std::string& app) {
  static const GuideTable kRecommender = {"8 devices, batch 2048",
                                          {{"weights", "500-600 MB"},
                                           {"gradients", "600 MB"},
                                           {"optimizer", "1200 MB"},
                                           {"activations", "100-200 MB"},
                                           {"cache", "2-3 MB"},
                                           {"total", "2.5-3 GB"}}};
  static const GuideTable kEmotion = {"20-24 rows a device", {{"total", "18-20 GB"}}};
  return app == "gpt2rec" ? &kRecommender : app == "emotion" ? &kEmotion : nullptr;
}

/// The flags of the trainer's dry run.
absl::StatusOr<std::vector<std::string>> trainer_flags(const ConfigParser& parser, const Flags& flags,
                                                       const std::vector<std::string>& further) {
  std::vector<std::string> words = {"--dry_run", "--json",         "--batch_size",
                                    "auto",      "--plan_devices", std::to_string(flags.devices)};
  std::optional<int64_t> rows = flags.global_batch_size;
  if (!flags.gpu_memory.empty()) {
    const std::optional<int64_t> bytes = parse_size(flags.gpu_memory);
    if (!bytes || *bytes < 1) return parser.invalid("gpu_memory", "not a size", "as in 24GiB, 24GB, 512MiB");
    words.insert(words.end(), {"--gpu_memory", flags.gpu_memory});
    if (flags.preset.empty() && flags.app == "gpt2rec" && !rows) rows = preset_for_memory(*bytes).global_batch_size;
  }
  if (!flags.preset.empty()) words.insert(words.end(), {"--preset", flags.preset});
  if (rows) words.insert(words.end(), {"--global_batch_size", std::to_string(*rows)});
  words.insert(words.end(), further.begin(), further.end());
  return words;
}

/// The trainer's own error, with its exit code.
absl::Status failed(const Flags& flags, const Ended& ended) {
  const size_t begin = std::min(ended.errors.find("error["), ended.errors.size());
  const std::string line = ended.errors.substr(begin, ended.errors.find('\n', begin) - begin);
  return to_status({.exit_code = static_cast<ExitCode>(ended.code),
                    .id = "plan.trainer",
                    .where = "trainkit-" + flags.app,
                    .problem = line.empty() ? "said nothing that is a plan" : line});
}

std::string table(const Flags& flags, const Json& plan) {
  const auto number = [&](const char* name) { return plan.at(name).get<int64_t>(); };
  const auto size = [](const Json& bytes) { return format_size(bytes.get<int64_t>()); };
  std::string text = fmt::format("{} rows a device x {} device{} x {} accumulated = {} a step\n", number("batch_size"),
                                 number("devices"), number("devices") == 1 ? "" : "s", number("grad_accum_steps"),
                                 number("global_batch_size"));
  if (number("lost_rows") != 0) text += fmt::format("{} rows of the global batch do not divide\n", number("lost_rows"));
  text += fmt::format("{} steps an epoch, {} in all; time not known before a step was taken there\n\n",
                      number("steps_per_epoch"), number("steps"));
  const GuideTable* guide = guide_table(flags.app);
  text += fmt::format("{:<14} {:>12}", "per device", "predicted");
  if (guide) text += fmt::format("   {}", "the guide (" + std::string(guide->example) + ")");
  text += "\n";
  for (const auto& [name, bytes] : plan.at("peak_bytes").items()) {
    const auto line = [&](const auto& entry) { return entry.first == name; };
    const auto said =
        guide ? std::find_if(guide->lines.begin(), guide->lines.end(), line) : decltype(guide->lines.end()){};
    if (bytes == 0 && (!guide || said == guide->lines.end())) continue;
    text += fmt::format("{:<14} {:>12}", name, size(bytes));
    if (guide && said != guide->lines.end()) text += fmt::format("   {}", said->second);
    text += "\n";
  }
  text += fmt::format("{:<14} {:>12}   by CUDA's allocator\n{:<14} {:>12}\n", "allocated",
                      size(plan.at("allocated_bytes")), "reserved", size(plan.at("reserved_bytes")));
  if (number("reserve_bytes") > 0) {
    text += fmt::format("{:<14} {:>12}   an allowance for driver, cuBLAS and cuDNN\n", "beside it",
                        size(plan.at("reserve_bytes")));
  }
  text += fmt::format("{:<14} {:>12}\n", "a device has", size(plan.at("device_bytes")));
  const double error = plan.at("check_error").get<double>();
  return text + fmt::format("checked at {} rows: off by {:.2f}%\n", number("check_batch_size"), 100 * error);
}

}  // namespace

absl::StatusOr<int> plan_command(const Arguments& arguments) {
  ConfigParser parser({.name = "trainkit plan",
                       .version = library_versions()["trainkit"],
                       .description = "Predicts the memory of a training step on devices that need not be here, and "
                                      "the batch that fits them. --preset NAME is the trainer's.",
                       .examples = {"trainkit plan --app transformer --preset large_gpu --gpu_memory 24GiB --devices 3",
                                    "trainkit plan --app hsi --gpu_memory 8GiB --json -- --data_dir hsi"}});
  Flags flags;
  add_flags(parser, flags);
  Arguments own = arguments;
  flags.preset = take_preset(own.flags);
  TRAINKIT_ASSIGN_OR_RETURN(const bool wanted, parse_or_print(parser, own));
  if (!wanted) return 0;
  TRAINKIT_ASSIGN_OR_RETURN(const auto words, trainer_flags(parser, flags, arguments.program));
  TRAINKIT_ASSIGN_OR_RETURN(const Ended ended, run_trainer(parser, flags.app, words));
  const Json answer = Json::parse(ended.output, nullptr, /*allow_exceptions=*/false);
  const bool planned =
      ended.code == 0 && answer.is_object() && answer.contains("plan") && !answer["plan"].contains("unavailable");
  if (!planned) return failed(flags, ended);
  Json plan = answer["plan"];
  plan["app"] = flags.app;
  print(flags.json ? plan.dump(2) + "\n" : table(flags, plan));
  return 0;
}

}  // namespace trainkit::tool
