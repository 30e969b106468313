// trainkit inspect: lists the tensors of a weight file or a checkpoint.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "trainkit/command.h"
#include "trainkit/config/config.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/status.h"
#include "trainkit/io/weight_file.h"
#include "trainkit/nn/exported_model.h"
#include "trainkit/report/summary.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit::tool {
namespace {

std::string shape_of(const WeightEntry& entry) {
  return entry.shape.size() == 1 ? fmt::format("({},)", entry.shape[0])
                                 : fmt::format("({})", fmt::join(entry.shape, ", "));
}

/// Adds two counts and saturates at the largest int64: sizes in a hostile file may overflow.
int64_t saturating_sum(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

struct Totals {
  explicit Totals(const WeightFile& file) {
    for (const WeightEntry& entry : file.entries()) {
      int64_t count = 1;
      for (const int64_t size : entry.shape) count *= size;  // cannot overflow: WeightFile::open has checked it
      values = saturating_sum(values, count);
      bytes = saturating_sum(bytes, entry.bytes);
    }
  }
  int64_t values = 0, bytes = 0;
};

/// How often a graph calls each operator, in the order of the list; nested graphs included.
void count_calls(const nlohmann::json& graph, std::vector<int64_t>& counts) {
  for (const auto& call : graph.at("calls")) {
    if (call.contains("graph")) count_calls(call["graph"], counts);
    if (call.contains("op")) ++counts.at(call["op"].get<size_t>());
  }
}

/// Lines about an exported PyTorch model (docs/formats/exported-model.md).
std::string describe_exported(const std::string& text) try {
  const auto json = nlohmann::json::parse(text);
  const auto shown = [](const nlohmann::json& value) { return escape_text(value.get<std::string>()); };
  std::string out =
      fmt::format("  exported model {} of PyTorch {}\n", shown(json.at("class")), shown(json.at("torch")));
  for (const auto& input : json.at("inputs")) {
    ExportedInput shape;
    for (const auto& size : input.at("shape")) shape.shape.push_back(size.is_string() ? -1 : size.get<int64_t>());
    out += fmt::format("  input {} {} {}\n", shown(input.at("name")), to_string(shape), shown(input.at("dtype")));
  }
  for (const auto& output : json.at("outputs")) out += fmt::format("  output {}\n", shown(output));
  for (const auto& [name, first] : json.at("ties").items()) {
    out += fmt::format("  {} is tied to {}\n", escape_text(name), shown(first));
  }
  const auto& operators = json.at("operators");
  std::vector<int64_t> counts(operators.size());
  count_calls(json.at("train"), counts);
  out += "  calls in training\n";
  for (size_t i = 0; i < counts.size(); ++i) {
    const std::string overload = shown(operators[i].at("overload"));
    if (counts[i] == 0) continue;
    out += fmt::format("    {:>5}  {}{}{}\n", counts[i], shown(operators[i].at("name")), overload.empty() ? "" : ".",
                       overload);
  }
  return out;
} catch (const std::exception&) {
  return "  its description is damaged\n";
}

std::string table(const WeightFile& file) {
  const Totals totals(file);
  std::string out =
      fmt::format("{}: {}, {} tensors, {} values, {} bytes ({})\n", escape_text(file.path(), 4096), file.format(),
                  file.entries().size(), totals.values, totals.bytes, format_size(totals.bytes));
  size_t name_width = 4, dtype_width = 5, shape_width = 5;
  for (const WeightEntry& entry : file.entries()) {
    name_width = std::max(name_width, std::min<size_t>(escape_text(entry.name).size(), 60));
    dtype_width = std::max(dtype_width, entry.dtype.size());
    shape_width = std::max(shape_width, std::min<size_t>(shape_of(entry).size(), 40));
  }
  const auto line = [&](std::string_view name, std::string_view dtype, std::string_view shape, std::string_view bytes) {
    out += fmt::format("  {:<{}}  {:<{}}  {:<{}}  {:>12}\n", name, name_width, dtype, dtype_width, shape, shape_width,
                       bytes);
  };
  if (!file.entries().empty()) line("name", "dtype", "shape", "bytes");
  for (const WeightEntry& entry : file.entries())
    line(escape_text(entry.name), entry.dtype, shape_of(entry), std::to_string(entry.bytes));
  constexpr char kExported[] = "trainkit.model";
  const auto exported = std::find_if(file.values().begin(), file.values().end(),
                                     [&](const auto& value) { return value.first == kExported; });
  const bool is_exported = exported != file.values().end();
  if (!is_exported && !file.values().empty()) out += "  other values\n";
  for (const auto& [name, text] : file.values()) {
    if (name != kExported) out += fmt::format("  {} = {}\n", escape_text(name), format_text(escape_text(text)));
  }
  if (is_exported) out += describe_exported(exported->second);
  return out;
}

nlohmann::ordered_json json(const WeightFile& file) {
  const Totals totals(file);
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array(), values = nlohmann::ordered_json::object();
  for (const WeightEntry& entry : file.entries())
    tensors.push_back({{"name", entry.name}, {"dtype", entry.dtype}, {"shape", entry.shape}, {"bytes", entry.bytes}});
  for (const auto& [name, text] : file.values()) values[name] = text;
  return {{"path", file.path()},   {"format", file.format()}, {"values", totals.values},
          {"bytes", totals.bytes}, {"tensors", tensors},      {"other", values}};
}

absl::StatusOr<std::vector<WeightFile>> open_all(const std::string& path, std::optional<int64_t>& step) {
  std::vector<WeightFile> files;
  if (!std::filesystem::is_directory(path)) {
    TRAINKIT_ASSIGN_OR_RETURN(WeightFile file, WeightFile::open(path));
    files.push_back(std::move(file));
    return files;
  }
  TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath checkpoint, resolve_checkpoint(path, "."));
  TRAINKIT_RETURN_IF_ERROR(verify_checkpoint(checkpoint));
  step = checkpoint.step;
  for (const char* name : {"/model.safetensors", "/optimizer.safetensors"}) {
    TRAINKIT_ASSIGN_OR_RETURN(WeightFile file, WeightFile::open(checkpoint.path() + name));
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace

absl::StatusOr<int> inspect_command(const Arguments& given) {
  ConfigParser parser(
      {.name = "trainkit inspect",
       .version = library_versions()["trainkit"],
       .description =
           "Lists names, dtypes, shapes and bytes of the tensors in a weight file (safetensors, or PyTorch's "
           ".pt, .pth, .bin;\ndetected by content), in an exported PyTorch model, with its inputs and operators, or in "
           "a "
           "checkpoint folder,\nwhose digests it verifies. "
           "Never executes code from a file.",
       .examples = {"trainkit inspect model.safetensors", "trainkit inspect pytorch_model.bin --json",
                    "trainkit inspect runs/transformer"},
       .words = "FILE"});
  bool as_json = false;
  parser.add("json", &as_json, {.help = "Print JSON instead of a table.", .group = "Output"});
  Arguments arguments = given;
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<std::string> words, parser.take_words(arguments.flags));
  TRAINKIT_ASSIGN_OR_RETURN(const bool wanted, parse_or_print(parser, arguments));
  if (!wanted || words.empty()) return 0;
  std::optional<int64_t> step;
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<WeightFile> files, open_all(words[0], step));
  if (as_json) {
    nlohmann::ordered_json out;
    if (step) out["step"] = *step;
    for (const WeightFile& file : files) out["files"].push_back(json(file));
    print(out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    return 0;
  }
  std::string out = step ? fmt::format("checkpoint of step {}, verified\n", *step) : "";
  for (const WeightFile& file : files) out += table(file);
  print(out);
  return 0;
}

}  // namespace trainkit::tool
