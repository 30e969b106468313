#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <unordered_map>

#include "io/weights/stored_tensors.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

constexpr size_t kNamedAtMost = 5;

std::string shape_of(const at::Tensor& tensor) {
  return fmt::format("({})", fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ", "));
}

bool convertible(at::ScalarType from, at::ScalarType to) {
  return from == to || (at::isFloatingType(from) && at::isFloatingType(to)) ||
         (at::isIntegralType(from, false) && at::isIntegralType(to, false));
}

/// Collects faults of one kind: counts all of them and names the first ones.
class Faults {
 public:
  void add(std::string name) {
    if (names_.size() < kNamedAtMost) names_.push_back(std::move(name));
    ++count_;
  }
  void report(std::vector<std::string>& parts, const char* kind) const {
    if (count_ == 0) return;
    const std::string more = count_ > names_.size() ? fmt::format(" and {} more", count_ - names_.size()) : "";
    parts.push_back(fmt::format("{} {} ({}{})", count_, kind, fmt::join(names_, ", "), more));
  }

 private:
  size_t count_ = 0;
  std::vector<std::string> names_;
};

}  // namespace

absl::StatusOr<std::vector<const at::Tensor*>> detail::match_named_tensors(const NamedTensors& source,
                                                                           const NamedTensors& target,
                                                                           const std::string& where) {
  std::unordered_map<std::string_view, const at::Tensor*> saved;
  for (const auto& [name, tensor] : source) saved.emplace(name, &tensor);
  Faults missing, shape, dtype, unexpected;
  std::vector<const at::Tensor*> sources;
  for (const auto& [name, tensor] : target) {
    const auto found = saved.extract(name);
    sources.push_back(found ? found.mapped() : nullptr);
    if (!found) {
      missing.add(name);
    } else if (found.mapped()->sizes() != tensor.sizes()) {
      shape.add(fmt::format("{}: {} in the file, {} here", name, shape_of(*found.mapped()), shape_of(tensor)));
    } else if (!convertible(found.mapped()->scalar_type(), tensor.scalar_type())) {
      dtype.add(fmt::format("{}: {} in the file, {} here", name, c10::toString(found.mapped()->scalar_type()),
                            c10::toString(tensor.scalar_type())));
    }
  }
  for (const auto& [name, tensor] : source) {
    if (saved.contains(name)) unexpected.add(name);
  }
  std::vector<std::string> parts;
  missing.report(parts, "missing");
  unexpected.report(parts, "unexpected");
  shape.report(parts, "of another shape");
  dtype.report(parts, "of another kind of dtype");
  if (parts.empty()) return sources;
  return to_status({.exit_code = ExitCode::kWeights,
                    .id = "weights.match",
                    .where = where,
                    .problem = "tensors do not match the model: " + fmt::format("{}", fmt::join(parts, "; "))},
                   absl::StatusCode::kInvalidArgument);
}

absl::Status copy_named_tensors(const NamedTensors& source, const NamedTensors& target, const std::string& where) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto sources, detail::match_named_tensors(source, target, where));
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < target.size(); ++i) target[i].second.copy_(*sources[i]);
  return absl::OkStatus();
}

}  // namespace trainkit
