#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "trainkit/command.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/status.h"
#include "trainkit/epoch_time.h"
#include "trainkit/guide_table.h"
#include "trainkit/memory/batch_size_planner.h"
#include "trainkit/report/summary.h"
#include "trainkit/trainer.h"

namespace trainkit::tool {
namespace {

constexpr char kAssumedMemory[] = "24GiB";
/// Clips (3 s of 720p) that one core decodes per second to 8 frames and sound. Measured as described in
/// docs/emotion.md.
constexpr double kDecodedClips = 10;

struct PlanFlags {
  std::string app = {}, preset = {}, gpu_memory = {}, shard = "none";
  std::optional<int64_t> devices = {}, global_batch_size = {};
  bool json = false;
  bool assumed = false;  // gpu_memory is kAssumedMemory
  std::string assumed_data = {};
  std::string gpu = {}, link = "10,11";
  double efficiency = kPublishedEfficiency, row_rate = 0, read_gbs = 5;
  int64_t workers = 12;
};

void add_time_flags(ConfigParser& parser, PlanFlags& flags) {
  const std::string time = "Time of an epoch";
  const OptionNeed gpu{"gpu", {""}, /*excludes=*/true};
  std::vector<std::string> names;
  for (const GpuSheet& sheet : gpu_sheets()) names.push_back(sheet.name);
  parser.add(
      "gpu", &flags.gpu,
      {.help = "Device whose data sheet gives the speed and the default of --gpu_memory. Default for emotion: rtx4090.",
       .group = time,
       .choices = names,
       .metavar = "NAME"});
  parser.add(
      "efficiency", &flags.efficiency,
      {.help = "Share of the data sheet's operations that training reaches. The default is the published value of "
               "ResNet-50 in half precision on an RTX 4090.",
       .group = time,
       .max = 1,
       .above = 0,
       .needs = {gpu}});
  parser.add(
      "link", &flags.link,
      {.help = "Link between devices, as --inside of trainkit scale. The default is half of PCIe 4, through the host.",
       .group = time,
       .metavar = "LINK",
       .needs = {gpu}});
  parser.add("workers", &flags.workers,
             {.help = "Loader workers over all devices.", .group = time, .min = 1, .max = 4096, .needs = {gpu}});
  parser.add("row_rate", &flags.row_rate,
             {.help = "Rows that one worker reads and decodes per second. 0: unknown.",
              .group = time,
              .min = 0,
              .needs = {gpu}});
  parser.add(
      "read_gbs", &flags.read_gbs,
      {.help = "Read speed of decoded rows in GB/s.", .group = time, .above = 0, .metavar = "GB/S", .needs = {gpu}});
}

void add_flags(ConfigParser& parser, PlanFlags& flags) {
  parser.add("app", &flags.app,
             {.help = "Trainer to plan for. Give its own flags after --.", .metavar = "NAME", .required = true});
  parser.add(
      "gpu_memory", &flags.gpu_memory,
      {.help = "Memory of each device, such as 24GiB. Default: that of --gpu, or the free memory of this machine's "
               "device (gpt2rec: 24GiB).",
       .metavar = "SIZE"});
  parser.add("devices", &flags.devices,
             {.help = "Number of devices; this machine need not have them. Default: 1; for gpt2rec and emotion that of "
                      "their guides.",
              .min = 1,
              .max = 1 << 20});
  parser.add("shard", &flags.shard,
             {.help = "What the devices divide among them, as --shard of the trainer.",
              .choices = {"none", "optimizer", "gradients"}});
  parser.add("global_batch_size", &flags.global_batch_size,
             {.help = "Rows per step over all devices and accumulation.", .min = 1, .max = 1 << 30});
  add_time_flags(parser, flags);
  parser.add("json", &flags.json, {.help = "Print JSON instead of a table.", .flag_only = true});
}

/// Removes --preset from `words` and returns its value. It names a preset of the trainer, unknown to this program's own
/// parser.
std::string take_preset(std::vector<std::string>& words) {
  constexpr std::string_view kFlag = "--preset";
  for (auto word = words.begin(); word != words.end(); ++word) {
    const bool joined = word->starts_with(std::string(kFlag) + "=");
    if (!joined && (*word != kFlag || std::next(word) == words.end())) continue;
    std::string name = joined ? word->substr(kFlag.size() + 1) : *std::next(word);
    words.erase(word, std::next(word, joined ? 1 : 2));
    return name;
  }
  return {};
}

/// Whether `words` have the flag `name`, also spelled with '-', as --no-NAME or as --NAME=VALUE.
bool has_flag(const std::vector<std::string>& words, const std::string& name) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    if (!word.starts_with("--")) return false;
    std::string flag = word.substr(2, word.find('=') - 2);
    std::replace(flag.begin(), flag.end(), '-', '_');
    return flag == name || flag == "no_" + name;
  });
}

/// Adds flags for the recommender without data: the users and items of MovieLens 1M and GPT-2 small, as in the
/// reference guide (docs/guides.md). The number of devices and the batch follow its table of settings by memory. Needs
/// no data set.
void add_guide_sizes(PlanFlags& flags, int64_t device_bytes, const std::vector<std::string>& further,
                     std::vector<std::string>& words) {
  const auto& presets = memory_presets();
  const auto named = std::find_if(presets.begin(), presets.end(),
                                  [&](const MemoryPreset& preset) { return preset.name == flags.preset; });
  const MemoryPreset& preset = named != presets.end()  ? *named
                               : !flags.preset.empty() ? presets.front()  // gpt2_small, the reference guide's example
                                                       : preset_for_memory(device_bytes);
  if (!has_flag(further, "data_dir") && !has_flag(further, "plan_data"))
    words.insert(words.end(), {"--plan_data", "6040x3706x1000209"});
  // One process plans; --plan_devices has the number of devices.
  if (!has_flag(further, "parallel")) words.insert(words.end(), {"--parallel", "1"});
  if (!flags.preset.empty()) {
    if (!flags.devices) flags.devices = preset.devices;
    return;
  }
  flags.preset = "gpt2_small";
  if (!flags.devices) flags.devices = preset.devices;
  if (!flags.global_batch_size) flags.global_batch_size = preset.global_batch_size;
  if (!preset.use_cache && !has_flag(further, "use_cache")) words.emplace_back("--no-use_cache");
}

/// Adds flags for emotion recognition without data: MELD's training clips on three RTX 4090, as in the reference guide.
void add_emotion_sizes(PlanFlags& flags, const std::vector<std::string>& further, std::vector<std::string>& words) {
  constexpr int64_t kGuideDevices = 3;
  const bool has_data =
      has_flag(further, "data_dir") || has_flag(further, "train_csv") || has_flag(further, "plan_data");
  if (!has_data) words.insert(words.end(), {"--plan_data", "9989"});
  if (!flags.devices) flags.devices = kGuideDevices;
  if (flags.gpu.empty()) flags.gpu = "rtx4090";
  if (flags.row_rate == 0) flags.row_rate = kDecodedClips;
}

/// Adds the scene of the reference guide, Indian Pines, for hyperspectral classification without data.
void add_hsi_sizes(PlanFlags& flags, const std::vector<std::string>& further, std::vector<std::string>& words) {
  for (const char* flag : {"data_dir", "cube", "plan_data", "scene"}) {
    if (has_flag(further, flag)) return;
  }
  words.insert(words.end(), {"--plan_data", "145x145x200x16x10249"});
  flags.assumed_data = "Indian Pines: 145 x 145 pixels, 200 bands, 16 classes, 10249 labelled pixels";
}

/// Returns the flags for the trainer's dry run.
absl::StatusOr<std::vector<std::string>> trainer_flags(const ConfigParser& parser, PlanFlags& flags,
                                                       const std::vector<std::string>& further) {
  std::vector<std::string> words = {"--dry_run", "--json"};
  if (!has_flag(further, "batch_size")) words.insert(words.end(), {"--batch_size", "auto"});
  int64_t device_bytes = 0;
  const bool recommender = flags.app == "gpt2rec";
  if (flags.app == "emotion") add_emotion_sizes(flags, further, words);
  if (flags.app == "hsi") add_hsi_sizes(flags, further, words);
  if (const GpuSheet* sheet = find_gpu(flags.gpu); sheet && flags.gpu_memory.empty()) flags.gpu_memory = sheet->memory;
  if (recommender && flags.gpu_memory.empty()) {
    flags.gpu_memory = kAssumedMemory;
    flags.assumed = true;
  }
  if (!flags.gpu_memory.empty()) {
    device_bytes = parse_size(flags.gpu_memory).value_or(0);
    if (device_bytes < 1) return parser.invalid("gpu_memory", "not a size", "such as 24GiB, 24GB, 512MiB");
    if (device_bytes < kLeastGpuMemory) {
      return parser.invalid("gpu_memory", "too small for a GPU", "at least 64MiB", "give a unit, such as 24GiB");
    }
    words.insert(words.end(), {"--gpu_memory", flags.gpu_memory});
  }
  if (recommender) add_guide_sizes(flags, device_bytes, further, words);
  words.insert(words.end(), {"--plan_devices", std::to_string(flags.devices.value_or(1))});
  if (!flags.preset.empty()) words.insert(words.end(), {"--preset", flags.preset});
  if (flags.shard != "none") words.insert(words.end(), {"--shard", flags.shard});
  if (flags.global_batch_size) {
    words.insert(words.end(), {"--global_batch_size", std::to_string(*flags.global_batch_size)});
  }
  // A plan writes nothing: the dry run tries a place that every user has, not the folder of a run.
  if (!has_flag(further, "output_dir")) {
    words.insert(words.end(), {"--output_dir", (std::filesystem::temp_directory_path() / "trainkit-plan").string()});
  }
  words.insert(words.end(), further.begin(), further.end());
  return words;
}

/// Returns the trainer's own error with its exit code, or the reason for a missing plan.
absl::Status failed(const PlanFlags& flags, const Ended& ended, const Json& answer) {
  if (ended.code == 0) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "plan.unavailable",
                      .where = "trainkit-" + flags.app,
                      .problem = "printed no plan: " + answer.at("plan").at("unavailable").get<std::string>()});
  }
  const size_t begin = std::min(ended.errors.find("error["), ended.errors.size());
  const size_t end = std::min(ended.errors.find('\n', begin), ended.errors.size());
  const std::string line = ended.errors.substr(begin, end - begin);
  constexpr std::string_view kHint = "\n  hint: ";
  std::string hint;
  if (ended.errors.compare(end, kHint.size(), kHint) == 0) {
    const size_t from = end + kHint.size();
    hint = ended.errors.substr(from, ended.errors.find('\n', from) - from);
  }
  return to_status({.exit_code = static_cast<ExitCode>(ended.code),
                    .id = "plan.trainer",
                    .where = "trainkit-" + flags.app,
                    .problem = line.empty() ? "printed no plan" : line,
                    .hint = hint});
}

std::string time_line(const Json& plan) {
  if (plan.at("step_seconds").is_null()) {
    return "time unknown: no step was measured on such a device (-- --measure measures steps on this machine's "
           "device)\n";
  }
  return fmt::format("{:.3g} s per step, {} per epoch, {} in total, measured on {}{}\n",
                     plan.at("step_seconds").get<double>(), format_duration(plan.at("epoch_seconds").get<double>()),
                     format_duration(plan.at("seconds").get<double>()), plan.at("timed_on").get<std::string>(),
                     plan.at("devices") == 1 ? "" : ", without all-reduce of gradients");
}

std::string table(const PlanFlags& flags, const Json& plan) {
  const auto number = [&](const char* name) { return plan.at(name).get<int64_t>(); };
  const auto size = [](const Json& bytes) { return format_size(bytes.get<int64_t>()); };
  std::string text;
  if (!flags.assumed_data.empty()) {
    text = fmt::format("data: {} (assumed; -- --data_dir DIR or -- --cube FILE --gt FILE plans for yours)\n",
                       flags.assumed_data);
  }
  text += fmt::format("{} rows per device x {} device{} x {} accumulated = {} per step\n", number("batch_size"),
                      number("devices"), number("devices") == 1 ? "" : "s", number("grad_accum_steps"),
                      number("global_batch_size"));
  if (number("lost_rows") != 0)
    text += fmt::format("{} rows of the global batch are left over by this division\n", number("lost_rows"));
  if (plan.contains("sharding_advice")) text += plan.at("sharding_advice").get<std::string>() + "\n";
  text +=
      fmt::format("{} steps per epoch, {} in total\n", number("steps_per_epoch"), number("steps")) + time_line(plan);
  text += fmt::format("\n{:<14} {:>12}\n", "per device", "predicted");
  for (const auto& [name, bytes] : plan.at("peak_bytes").items()) {
    if (bytes != 0) text += fmt::format("{:<14} {:>12}\n", name, size(bytes));
  }
  text += fmt::format("{:<14} {:>12}   by CUDA's allocator\n{:<14} {:>12}\n", "allocated",
                      size(plan.at("allocated_bytes")), "reserved", size(plan.at("reserved_bytes")));
  if (number("reserve_bytes") > 0) {
    text += fmt::format("{:<14} {:>12}   allowance for driver, cuBLAS and cuDNN\n", "reserve",
                        size(plan.at("reserve_bytes")));
  }
  text += fmt::format("{:<14} {:>12}{}\n", "a device has", size(plan.at("device_bytes")),
                      flags.assumed ? "   assumed; override with --gpu_memory" : "");
  const double error = plan.at("check_error").get<double>();
  text += fmt::format("checked with {} rows: relative error {:.2f}%\n", number("check_batch_size"), 100 * error);
  return text + guide_table(flags.app, plan);
}

absl::StatusOr<EpochTimeOptions> time_options(const ConfigParser& parser, const PlanFlags& flags) {
  const absl::StatusOr<Link> link = parse_link(flags.link);
  if (!link.ok()) {
    const Error error = error_of(link.status()).value();
    return parser.invalid("link", error.problem, error.expected, error.hint);
  }
  EpochTimeOptions options{.gpu = *find_gpu(flags.gpu),
                           .efficiency = flags.efficiency,
                           .link = *link,
                           .workers = flags.workers,
                           .rows_per_second = flags.row_rate,
                           .read_bytes_per_second = 1e9 * flags.read_gbs};
  if (parser.is_given("efficiency")) options.efficiency_source = "--efficiency";
  return options;
}

}  // namespace

absl::StatusOr<int> plan_command(const Arguments& arguments) {
  ConfigParser parser(
      {.name = "trainkit plan",
       .version = library_versions()["trainkit"],
       .description = "Predicts the memory of a training step, the batch size that fits and the time of an epoch, also "
                      "for devices that this machine does not have. --preset NAME is passed to the trainer.",
       .examples = {
           "trainkit plan --app transformer --preset large_gpu --gpu_memory 24GiB --devices 3",
           "trainkit plan --app transformer --preset large_gpu --gpu_memory 24GiB --devices 4 --shard optimizer",
           "trainkit plan --app gpt2rec", "trainkit plan --app emotion -- --model_size huge --batch_size 12",
           "trainkit plan --app transformer --gpu rtx4070 -- --input book.txt", "trainkit plan --app hsi",
           "trainkit plan --app hsi --gpu h100 --devices 4 -- --data_dir hsi",
           "trainkit plan --app hsi --gpu_memory 8GiB --json -- --data_dir hsi"}});
  PlanFlags flags;
  add_flags(parser, flags);
  Arguments own = arguments;
  flags.preset = take_preset(own.flags);
  TRAINKIT_ASSIGN_OR_RETURN(const bool wanted, parse_or_print(parser, own));
  if (!wanted) return 0;
  TRAINKIT_ASSIGN_OR_RETURN(const auto words, trainer_flags(parser, flags, arguments.program));
  TRAINKIT_RETURN_IF_ERROR(parser.check_used({}, {{"gpu", flags.gpu}}));
  std::optional<EpochTimeOptions> time;
  if (!flags.gpu.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(time, time_options(parser, flags));
  }
  TRAINKIT_ASSIGN_OR_RETURN(const Ended ended, run_trainer(parser, flags.app, words));
  const Json answer = Json::parse(ended.output, nullptr, /*allow_exceptions=*/false);
  if (ended.code == 0 && !answer.contains("plan")) {  // --help, --version or --print_config of the trainer
    print(ended.output);
    return 0;
  }
  if (ended.code != 0 || answer["plan"].contains("unavailable")) return failed(flags, ended, answer);
  Json plan = answer["plan"];
  plan["app"] = flags.app;
  if (!flags.assumed_data.empty()) plan["assumed_data"] = flags.assumed_data;
  add_guide(flags.app, plan);
  std::string epoch;
  if (time) {
    const EpochTime predicted = predict_epoch(plan, *time);
    plan["epoch"] = epoch_json(*time, predicted);
    epoch = describe_epoch(plan, *time, predicted);
  }
  print(flags.json ? plan.dump(2) + "\n" : table(flags, plan) + epoch);
  return 0;
}

}  // namespace trainkit::tool
