#include "trainkit/train/weights.h"

#include <c10/core/GradMode.h>

#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "trainkit/core/error.h"

namespace trainkit {
namespace {

/// "a, b, c and 4 more".
std::string list_names(const std::vector<std::string>& names) {
  std::string list;
  for (size_t i = 0; i < names.size() && i < 20; ++i) list += (i ? ", " : "") + names[i];
  if (names.size() > 20) list += " and " + std::to_string(names.size() - 20) + " more";
  return list;
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

absl::Status load_named_tensors(torch::nn::Module& model, const NamedTensors& tensors) {
  std::map<std::string, const at::Tensor*> given;
  for (const auto& [name, tensor] : tensors) given[name] = &tensor;
  std::vector<std::string> missing, misshapen;
  const NamedTensors own = named_tensors(model);
  for (const auto& [name, tensor] : own) {
    const auto it = given.find(name);
    if (it == given.end()) {
      missing.push_back(name);
    } else if (it->second->sizes() != tensor.sizes()) {
      std::ostringstream text;
      text << name << " " << it->second->sizes() << " for " << tensor.sizes();
      misshapen.push_back(text.str());
    }
  }
  std::vector<std::string> unexpected;
  std::set<std::string> names;
  for (const auto& [name, tensor] : own) names.insert(name);
  for (const auto& [name, tensor] : given) {
    if (!names.contains(name)) unexpected.push_back(name);
  }
  const auto fail = [](const char* id, const char* problem, const std::vector<std::string>& list) {
    return to_status({.exit_code = ExitCode::kWeights, .id = id, .problem = problem + list_names(list)});
  };
  if (!missing.empty()) return fail("weights.missing", "tensors are missing: ", missing);
  if (!misshapen.empty()) return fail("weights.shape", "tensors have another shape than the model's: ", misshapen);
  if (!unexpected.empty()) return fail("weights.unexpected", "tensors are not the model's: ", unexpected);
  const c10::AutoGradMode no_grad(false);
  for (auto& [name, tensor] : own) at::Tensor(tensor).copy_(*given.at(name));
  return absl::OkStatus();
}

}  // namespace trainkit
