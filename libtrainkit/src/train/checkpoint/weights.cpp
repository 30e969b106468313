#include "trainkit/train/weights.h"

#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "io/weights/model_weights.h"
#include "trainkit/core/status.h"
#include "trainkit/io/weight_file.h"

namespace trainkit {
namespace {

/// Maps the second and further names of shared tensors in `model` to the first name.
std::map<std::string, std::string> alias_names(const torch::nn::Module& model) {
  std::unordered_map<const void*, std::string> first;
  std::map<std::string, std::string> further;
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      if (!item.value().defined()) continue;
      const auto [at, is_first] = first.try_emplace(item.value().unsafeGetTensorImpl(), item.key());
      if (!is_first) further.emplace(item.key(), at->second);
    }
  };
  add(model.named_parameters());
  add(model.named_buffers());
  return further;
}

/// Returns a test whether a name is one of the model's, the further names of shared tensors included.
std::function<bool(const std::string&)> is_name_in(const torch::nn::Module& model, const NamedTensors& target) {
  std::set<std::string> names;
  for (const auto& named : target) names.insert(named.first);
  for (const auto& [further, first] : alias_names(model)) names.insert(further);
  return [names = std::move(names)](const std::string& name) { return names.contains(name); };
}

void rename(NamedTensors& tensors, const std::vector<std::pair<std::string, std::string>>& rules) {
  for (auto& named : tensors) {
    std::string& name = named.first;
    const auto rule =
        std::find_if(rules.begin(), rules.end(), [&](const auto& r) { return name.starts_with(r.first); });
    if (rule != rules.end()) name.replace(0, rule->first.size(), rule->second);
  }
}

/// Removes the tensors whose names begin with a rule of `skip` from both lists. Returns the first rule without a
/// tensor.
std::optional<std::string> skip_names(const std::vector<std::string>& skip, NamedTensors& source,
                                      NamedTensors& target) {
  for (const std::string& rule : skip) {
    const auto matches = [&](const auto& named) { return named.first.starts_with(rule); };
    if (std::erase_if(source, matches) + std::erase_if(target, matches) == 0) return rule;
  }
  return std::nullopt;
}

/// Renames tied tensors to the name that named_tensors() lists.
void merge_tied(NamedTensors& tensors, const torch::nn::Module& model) {
  const auto further = alias_names(model);
  std::set<std::string> names;
  for (const auto& named : tensors) names.insert(named.first);
  std::erase_if(tensors, [&](auto& named) {
    const auto at = further.find(named.first);
    if (at == further.end()) return false;
    if (!names.insert(at->second).second) return true;
    named.first = at->second;
    return false;
  });
}

absl::Status refuse_weights(const std::string& path, const std::string& name, std::string problem) {
  return to_status({.exit_code = ExitCode::kWeights,
                    .id = "weights.match",
                    .where = path,
                    .field = name,
                    .problem = std::move(problem)},
                   absl::StatusCode::kInvalidArgument);
}

/// Counts the values whose bits of the exponent, `exponent`, are all set: infinities and NaN. With `only_nan` those
/// with a fraction.
template <class Bits>
int64_t count_set_exponents(const at::Tensor& values, Bits exponent, bool only_nan) {
  const auto* bits = static_cast<const Bits*>(values.const_data_ptr());
  constexpr auto kMagnitude = static_cast<Bits>(std::numeric_limits<Bits>::max() >> 1);  // without the sign
  const auto most = static_cast<Bits>(only_nan ? exponent : exponent - 1);
  int64_t count = 0;
  for (int64_t i = 0; i < values.numel(); ++i) count += static_cast<Bits>(bits[i] & kMagnitude) > most;
  return count;
}

/// Counts the infinities and NaN of a vector of floating-point numbers, or with `only_nan` the NaN.
int64_t count_nonfinite(const at::Tensor& values, bool only_nan) {
  switch (values.scalar_type()) {
    case at::kFloat:
      return count_set_exponents<uint32_t>(values, 0x7f800000, only_nan);
    case at::kDouble:
      return count_set_exponents<uint64_t>(values, 0x7ff0000000000000, only_nan);
    case at::kBFloat16:
      return count_set_exponents<uint16_t>(values, 0x7f80, only_nan);
    case at::kHalf:
      return count_set_exponents<uint16_t>(values, 0x7c00, only_nan);
    default:  // 8-bit floats
      return count_nonfinite(values.to(at::kFloat), only_nan);
  }
}

/// Whether a finite number of type `from` may be infinite as `to`.
bool may_overflow(at::ScalarType from, at::ScalarType to) {
  return from != to && to != at::kDouble && (to != at::kFloat || from == at::kDouble);
}

/// Returns an error that names the first tensor with non-finite values, or with values that the dtype in the model
/// cannot hold. Buffers may contain infinity, since masks do. Reads and converts a piece at a time.
absl::Status check_finite(const NamedTensors& tensors, detail::StoredTensors& stored, const NamedTensors& target,
                          const torch::nn::Module& model, const std::string& path) {
  std::set<std::string> parameters;
  for (const auto& item : model.named_parameters()) parameters.insert(item.key());
  const std::unordered_map<std::string, at::Tensor> by_name(target.begin(), target.end());
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.is_floating_point()) continue;
    const bool is_buffer = !parameters.contains(name);
    const auto found = by_name.find(name);
    const bool converts = found != by_name.end() && found->second.is_floating_point() &&
                          may_overflow(tensor.scalar_type(), found->second.scalar_type());
    int64_t count = 0, converted = 0;
    TRAINKIT_RETURN_IF_ERROR(stored.for_each_piece(tensor, [&](const at::Tensor& piece, int64_t) {
      count += count_nonfinite(piece, is_buffer);
      if (converts) converted += count_nonfinite(piece.to(found->second.scalar_type()), is_buffer);
      return absl::OkStatus();
    }));
    const bool overflows = count == 0 && converted > 0;
    if (overflows) count = converted;
    if (count == 0) continue;
    return to_status({.exit_code = ExitCode::kWeights,
                      .id = "weights.nonfinite",
                      .where = path,
                      .field = name,
                      .problem = overflows ? fmt::format("contains values that the model's {} cannot hold",
                                                         c10::toString(found->second.scalar_type()))
                                           : "contains infinity or NaN",
                      .got = std::to_string(count) + " of " + std::to_string(tensor.numel()) + " values",
                      .expected = "finite numbers",
                      .hint = overflows ? "load them into a model of the file's dtype"
                                        : "the run that wrote the file diverged: use earlier weights"});
  }
  return absl::OkStatus();
}

/// Adds the counts of batches that BatchNorm layers lack in files written before PyTorch 0.4.1: 0, as
/// Module.load_state_dict does for them.
void add_batch_counts(NamedTensors& source, const NamedTensors& target) {
  constexpr std::string_view kCount = "num_batches_tracked";
  std::set<std::string> names;
  for (const auto& named : source) names.insert(named.first);
  for (const auto& [name, tensor] : target) {
    if (!name.ends_with(kCount) || names.contains(name)) continue;
    const std::string layer = name.substr(0, name.size() - kCount.size());  // "bn1."
    if (names.contains(layer + "running_mean")) source.emplace_back(name, at::zeros({}, tensor.options()));
  }
}

/// Reduces both lists to the tensors that match by name and shape, and reports the rest.
LoadedWeights keep_common(NamedTensors& source, NamedTensors& target) {
  LoadedWeights found;
  std::unordered_map<std::string, at::Tensor> by_name(source.begin(), source.end());
  NamedTensors kept_source, kept_target;
  for (const auto& [name, tensor] : target) {
    const auto saved = by_name.extract(name);
    if (!saved) {
      found.missing.push_back(name);
    } else if (saved.mapped().sizes() != tensor.sizes()) {
      found.misshapen.push_back(name);
    } else {
      kept_source.emplace_back(name, saved.mapped());
      kept_target.emplace_back(name, tensor);
    }
  }
  for (const auto& named : source) {
    if (by_name.contains(named.first)) found.unexpected.push_back(named.first);
  }
  source = std::move(kept_source);
  target = std::move(kept_target);
  return found;
}

}  // namespace

NamedTensors named_tensors(const torch::nn::Module& model) {
  NamedTensors tensors;
  std::set<const void*> seen;
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
        tensors.emplace_back(item.key(), item.value().detach());
      }
    }
  };
  add(model.named_parameters());
  add(model.named_buffers());
  return tensors;
}

absl::Status load_named_tensors(torch::nn::Module& model, const NamedTensors& tensors, const std::string& where) {
  return copy_named_tensors(tensors, named_tensors(model), where);
}

absl::StatusOr<LoadedWeights> load_weights(torch::nn::Module& model, const std::string& path,
                                           const LoadWeightsOptions& options, const Fs& fs) {
  TRAINKIT_ASSIGN_OR_RETURN(const WeightFile file, WeightFile::open(path, fs));
  detail::StoredTensors stored;
  TRAINKIT_ASSIGN_OR_RETURN(detail::ModelWeights read, detail::list_model_weights(file, stored, options.prefix));
  TRAINKIT_RETURN_IF_ERROR(stored.verify(read.tensors));
  NamedTensors target = named_tensors(model);
  detail::strip_wrappers(read, is_name_in(model, target));
  NamedTensors& source = read.tensors;
  rename(source, options.rename);
  merge_tied(source, model);
  if (const auto unused = skip_names(options.skip, source, target)) {
    return refuse_weights(path, *unused, "matches no tensor of the file or the model, so that it cannot be skipped");
  }
  add_batch_counts(source, target);
  if (options.adapt) {
    TRAINKIT_RETURN_IF_ERROR(stored.read_all(source));
    TRAINKIT_RETURN_IF_ERROR(options.adapt(source, target));
  }
  std::set<std::string_view> names;
  for (const auto& named : source) {
    if (!names.insert(named.first).second)
      return refuse_weights(path, named.first, "is a duplicate name after renaming");
  }
  LoadedWeights found;
  if (options.partial) {
    found = keep_common(source, target);
    if (source.empty()) return refuse_weights(path, {}, "no tensor of the file matches the model by name and shape");
  }
  if (!options.allow_nonfinite) TRAINKIT_RETURN_IF_ERROR(check_finite(source, stored, target, model, path));
  TRAINKIT_RETURN_IF_ERROR(stored.copy_all(source, target, path));
  found.loaded = static_cast<int64_t>(target.size());
  found.left_out = std::move(read.left_out);
  return found;
}

}  // namespace trainkit
