#include "app/program/initial_weights.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <unordered_map>

#include "io/weights/model_weights.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/weights.h"

namespace trainkit {

absl::Status App::adapt_weights(RunContext&, const RunWeights&, LoadWeightsOptions&, RunFacts&) {
  return absl::OkStatus();
}

namespace detail {
namespace {

/// Returns the row of the file for each row here; -1 if the file has none of its name.
std::vector<int64_t> rows_in_file(const RowNames& rows) {
  std::unordered_map<std::string_view, int64_t> by_name;
  for (size_t i = 0; i < rows.in_file.size(); ++i) by_name.emplace(rows.in_file[i], static_cast<int64_t>(i));
  std::vector<int64_t> found;
  for (const std::string& name : rows.here) {
    const auto at = by_name.find(name);
    found.push_back(at == by_name.end() ? -1 : at->second);
  }
  return found;
}

const at::Tensor* find_tensor(const NamedTensors& tensors, const std::string& name) {
  const auto at = std::find_if(tensors.begin(), tensors.end(), [&](const auto& named) { return named.first == name; });
  return at == tensors.end() ? nullptr : &at->second;
}

}  // namespace

absl::StatusOr<RunWeights> find_initial_weights(const std::string& path) {
  std::error_code ignored;  // reading the file reports it
  const bool is_folder = std::filesystem::is_directory(path, ignored) || split_path(path).second == "latest";
  if (!is_folder) {
    RunWeights weights{.run = split_path(path).first, .file = path};
    const auto [checkpoints, step] = split_path(weights.run);
    if (step.starts_with("step-") && split_path(checkpoints).second == "checkpoints")
      weights.run = split_path(checkpoints).first;
    return weights;
  }
  TRAINKIT_ASSIGN_OR_RETURN(RunWeights weights, find_weights(path));
  if (!weights.is_best) {
    const std::string checkpoints = split_path(split_path(weights.file).first).first;
    TRAINKIT_RETURN_IF_ERROR(verify_checkpoint({.folder = checkpoints, .step = weights.step}));
  }
  return weights;
}

absl::Status load_initial_weights(App& app, RunContext& context, torch::nn::Module& model, RunFacts& facts) {
  TRAINKIT_ASSIGN_OR_RETURN(const RunWeights from, find_initial_weights(context.run.init_from));
  LoadWeightsOptions options;
  TRAINKIT_RETURN_IF_ERROR(app.adapt_weights(context, from, options, facts));
  TRAINKIT_ASSIGN_OR_RETURN(const LoadedWeights loaded, load_weights(model, from.file, options));
  if (!loaded.left_out.empty()) facts.emplace_back("note", describe_left_out(from.file, loaded.left_out));
  return absl::OkStatus();
}

std::string file_beside(const RunWeights& weights, const std::string& name) {
  for (const std::string& folder : {split_path(weights.file).first, weights.run}) {
    std::string path = folder + "/" + name;
    if (std::error_code ignored; std::filesystem::exists(path, ignored)) return path;
  }
  return "";
}

std::optional<std::string> setting_beside(const RunWeights& weights, const std::string& name) {
  const std::string path = file_beside(weights, "config.yaml");
  constexpr int64_t kMostBytes = 1 << 20;
  const auto text = path.empty() ? absl::NotFoundError("") : Fs::posix().read_file(path, kMostBytes);
  if (!text.ok()) return std::nullopt;
  const std::string key = "\n" + name + ": ";
  const std::string all = "\n" + *text + "\n";
  const size_t at = all.find(key);
  if (at == all.npos) return std::nullopt;
  std::string value = all.substr(at + key.size(), all.find('\n', at + key.size()) - at - key.size());
  if (const size_t comment = value.find(" #"); comment != value.npos) value.resize(comment);
  while (!value.empty() && value.back() == ' ') value.pop_back();
  if (value.size() >= 2 && (value.front() == '"' || value.front() == '\'') && value.back() == value.front())
    value = value.substr(1, value.size() - 2);
  return value;
}

absl::Status other_meaning(const std::string& where, const std::string& field, const std::string& problem,
                           const std::string& got, const std::string& expected, const std::string& hint) {
  return to_status({.exit_code = ExitCode::kWeights,
                    .id = "weights.meaning",
                    .where = where,
                    .field = field,
                    .problem = problem,
                    .got = got,
                    .expected = expected,
                    .hint = hint});
}

absl::Status check_heads(const RunWeights& weights, const std::string& setting, int64_t heads, int64_t default_heads) {
  std::optional<std::string> saved = setting_beside(weights, setting);
  if (saved == "0") saved = std::to_string(default_heads);
  if (!saved || *saved == std::to_string(heads)) return absl::OkStatus();
  return other_meaning(weights.file, setting, "another number of heads than in this run", *saved, std::to_string(heads),
                       fmt::format("--{} {}", setting, *saved));
}

int64_t RowNames::known() const {
  const std::vector<int64_t> rows = rows_in_file(*this);
  return std::count_if(rows.begin(), rows.end(), [](int64_t row) { return row >= 0; });
}

std::string RowNames::describe() const { return fmt::format("{} of {} {}", known(), here.size(), kind); }

absl::Status take_rows(NamedTensors& file, const NamedTensors& model, const RowNames& rows,
                       const std::vector<std::string>& names, const std::string& where, bool more_rows) {
  const std::vector<int64_t> from = rows_in_file(rows);
  std::vector<int64_t> known, known_from;
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] < 0) continue;
    known.push_back(static_cast<int64_t>(i));
    known_from.push_back(from[i]);
  }
  const auto named = static_cast<int64_t>(rows.in_file.size()), own = static_cast<int64_t>(rows.here.size());
  for (auto& [name, tensor] : file) {
    const at::Tensor* target = find_tensor(model, name);
    const bool is_listed = std::find(names.begin(), names.end(), name) != names.end();
    if (!is_listed || !target || tensor.dim() == 0 || tensor.dim() != target->dim() ||
        tensor.sizes().slice(1) != target->sizes().slice(1) || target->size(0) < own) {
      continue;
    }
    if (tensor.size(0) < named || (!more_rows && tensor.size(0) != named)) {
      return other_meaning(where, name, fmt::format("another number of {} than the weights have rows", rows.kind),
                           std::to_string(named), std::to_string(tensor.size(0)), "the two files are not of one run");
    }
    at::Tensor ordered = target->to(at::Device(at::kCPU), tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    ordered.index_copy_(0, at::tensor(known, at::kLong), tensor.index_select(0, at::tensor(known_from, at::kLong)));
    tensor = ordered;
  }
  return absl::OkStatus();
}

}  // namespace detail
}  // namespace trainkit
