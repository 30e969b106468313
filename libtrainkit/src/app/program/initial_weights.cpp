#include "trainkit/app/initial_weights.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <unordered_map>

#include "report/run_file.h"
#include "trainkit/app/app.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit {
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

std::string first_names(const std::vector<std::string>& names) {
  constexpr size_t kMost = 5;
  return fmt::format("{}", fmt::join(names.begin(), names.begin() + std::min(names.size(), kMost), ", "));
}

absl::Status put_into_order(NamedTensors& file, const NamedTensors& model, const RowNames& rows,
                            const std::string& where) {
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
    const bool is_listed = std::find(rows.tensors.begin(), rows.tensors.end(), name) != rows.tensors.end();
    if (!is_listed || !target || tensor.dim() == 0 || tensor.dim() != target->dim() ||
        tensor.sizes().slice(1) != target->sizes().slice(1) || target->size(0) < own) {
      continue;
    }
    if (tensor.size(0) < named || (!rows.more_rows && tensor.size(0) != named)) {
      return other_meaning(where, name, fmt::format("another number of {} than the weights have rows", rows.kind),
                           std::to_string(named), std::to_string(tensor.size(0)), "the two files are not of one run");
    }
    at::Tensor ordered = target->to(at::Device(at::kCPU), tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    ordered.index_copy_(0, at::tensor(known, at::kLong), tensor.index_select(0, at::tensor(known_from, at::kLong)));
    tensor = ordered;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status App::adapt_weights(RunContext&, const RunWeights&, LoadWeightsOptions&, RunFacts&) {
  return absl::OkStatus();
}

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
  for (const detail::RunSetting& setting : detail::parse_settings(*text)) {
    if (setting.name == name) return setting.value;
  }
  return std::nullopt;
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

absl::Status check_setting(const RunWeights& weights, const std::string& setting, const std::string& value,
                           const std::string& noun, const std::string& default_value) {
  std::optional<std::string> saved = setting_beside(weights, setting);
  if (saved == "0") saved = default_value;
  if (!saved || *saved == value) return absl::OkStatus();
  return other_meaning(weights.file, setting, fmt::format("another {} than in this run", noun), *saved, value,
                       fmt::format("--{} {}", setting, *saved));
}

absl::Status take_rows(const RunWeights& from, const std::string& where, const std::vector<RowNames>& rows,
                       LoadWeightsOptions& options, RunFacts& facts, const std::string& hint) {
  std::vector<std::string> counts, kinds, saved, own;
  int64_t known = 0;
  for (const RowNames& each : rows) {
    const std::vector<int64_t> found = rows_in_file(each);
    const auto count = std::count_if(found.begin(), found.end(), [](int64_t row) { return row >= 0; });
    counts.push_back(fmt::format("{} of {} {}", count, found.size(), each.kind));
    if (!each.required) continue;
    known += count;
    kinds.push_back(each.kind);
    saved.push_back(first_names(each.in_file));
    own.push_back(first_names(each.here));
  }
  if (known == 0) {
    return other_meaning(where, "", fmt::format("has none of these {}", fmt::join(kinds, " and ")),
                         fmt::format("{}", fmt::join(saved, "; ")), fmt::format("{}", fmt::join(own, "; ")), hint);
  }
  facts.emplace_back("start", fmt::format("weights of {}: {} by the names in {}; new rows start as in a new model",
                                          from.file, fmt::join(counts, ", "), where));
  options.adapt = [rows, where](NamedTensors& file, const NamedTensors& model) {
    for (const RowNames& each : rows) TRAINKIT_RETURN_IF_ERROR(put_into_order(file, model, each, where));
    return absl::OkStatus();
  };
  return absl::OkStatus();
}

}  // namespace trainkit
