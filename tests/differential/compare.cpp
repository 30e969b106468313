#include "compare.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cctype>
#include <cmath>

namespace trainkit::differential {
namespace {

bool is_error(const Record& record) {
  const auto first = record.lower_bound("error/");
  return first != record.end() && first->first.starts_with("error/");
}

std::string error_of(const Record& record) {
  return is_error(record) ? record.lower_bound("error/")->first : "no error";
}

/// Place and kind of a tensor: those of one kind have the same scale. "step3/optimizer/l0.weight.exp_avg" becomes
/// "step3/optimizer/exp_avg", "step3/param/l0.weight" "step3/param/".
std::string kind_of(const std::string& name) {
  const size_t slash = name.rfind('/');
  const std::string place = name.substr(0, slash + 1);
  return place.ends_with("optimizer/") ? place + name.substr(name.rfind('.') + 1) : place;
}

/// Whether names count things: any difference is one.
bool is_exact(const std::string& name) {
  for (const char* part :
       {"/epoch", "/rows", "/steps", "/best_step", "/reason", ".step", "/skipped", "kept/", "num_batches"}) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

at::Tensor as_double(const at::Tensor& tensor) { return tensor.to(at::kDouble); }

/// The norm of a - b, where equal infinities and NaN in both are no difference.
double distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = as_double(a), y = as_double(b);
  const at::Tensor same = x.eq(y).logical_or(x.isnan().logical_and(y.isnan()));
  const double norm = at::where(same, at::zeros({}, at::kDouble), x - y).norm().item<double>();
  return std::isnan(norm) ? INFINITY : norm;
}

double norm_of(const at::Tensor& tensor) { return as_double(tensor).nan_to_num(0, 0, 0).norm().item<double>(); }

/// The first number in a name, so that step 2 comes before step 10.
int64_t place_in_time(const std::string& name) {
  const size_t digit = name.find_first_of("0123456789");
  return digit == std::string::npos || digit > 6 ? 1'000'000 : std::atoll(name.c_str() + digit);
}

std::string values_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return "[]";
  const at::Tensor some = as_double(tensor).flatten().slice(0, 0, 3);
  std::string text;
  for (int64_t i = 0; i < some.numel(); ++i) text += fmt::format("{}{:.10g}", i > 0 ? " " : "", some[i].item<double>());
  return text;
}

}  // namespace

std::vector<std::string> compare(const Record& ours, const Record& theirs, const Tolerance& tolerance) {
  for (const Record* record : {&ours, &theirs}) {  // what a run itself has found
    const auto fault = record->lower_bound("fault/");
    if (fault != record->end() && fault->first.starts_with("fault/")) return {fault->first};
  }
  if (is_error(ours) && is_error(theirs)) return {};
  if (is_error(ours) || is_error(theirs)) return {"one failed: " + error_of(ours) + " | other: " + error_of(theirs)};
  std::map<std::string, double> squares;
  for (const auto& [name, tensor] : theirs) {
    double& sum = squares[kind_of(name)];
    const double norm = norm_of(tensor);
    sum += norm * norm;
  }
  std::vector<std::pair<int64_t, std::string>> found;
  for (const auto& [name, tensor] : ours) {
    const auto other = theirs.find(name);
    if (other == theirs.end()) {
      if (!tolerance.only_common && !name.ends_with(".step"))
        found.emplace_back(place_in_time(name), name + " is missing on the other side");
      continue;
    }
    const at::Tensor& their = other->second;
    if (tensor.sizes() != their.sizes()) {
      found.emplace_back(place_in_time(name), name + " has another shape");
      continue;
    }
    const double difference = distance(tensor, their);
    double allowed = 0;
    if (tolerance.relative > 0 && !is_exact(name)) {
      // A gradient that should be 0 (of a bias before BatchNorm) is noise of the others' size.
      const double noise = tolerance.reordered.empty() ? 1e-6 : 1;
      const double scale = std::max(norm_of(their), noise * std::sqrt(squares[kind_of(name)]));
      allowed = tolerance.relative * std::max(scale, 1e-5);
      for (const Record& other : tolerance.reordered) {
        if (other.contains(name)) allowed = std::max(allowed, 4 * distance(their, other.at(name)));
      }
    }
    const auto is_as_exact = [&] {
      if (!tolerance.exact || is_exact(name)) return false;
      const auto exact = tolerance.exact->find(name);
      return exact != tolerance.exact->end() && exact->second.sizes() == tensor.sizes() &&
             distance(tensor, exact->second) <= 4 * distance(their, exact->second);
    };
    if (!(difference <= allowed) && !is_as_exact()) {
      found.emplace_back(place_in_time(name), fmt::format("{}: {:.3g} apart, allowed {:.3g}; here {} there {}", name,
                                                          difference, allowed, values_of(tensor), values_of(their)));
    }
  }
  if (!tolerance.only_common) {
    for (const auto& [name, tensor] : theirs) {
      if (!ours.contains(name)) found.emplace_back(place_in_time(name), name + " is missing here");
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> lines;
  for (auto& [place, line] : found) lines.push_back(std::move(line));
  return lines;
}

}  // namespace trainkit::differential
