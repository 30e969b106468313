#pragma once
/// Formatting of option errors. Private to optim.

#include <cmath>
#include <string>

namespace trainkit::detail {

inline bool finite_not_negative(double value) { return value >= 0 && std::isfinite(value); }

/// Returns " <name> must be <rule>, got <value>;" unless `holds`, else "".
inline std::string require_option(bool holds, const char* name, const char* rule, double value) {
  return holds ? "" : std::string(" ") + name + " must be " + rule + ", got " + std::to_string(value) + ";";
}

inline std::string shared_option_problems(double lr, double weight_decay) {
  return require_option(finite_not_negative(lr), "lr", "finite and >= 0", lr) +
         require_option(finite_not_negative(weight_decay), "weight_decay", "finite and >= 0", weight_decay);
}

}  // namespace trainkit::detail
