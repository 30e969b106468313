#pragma once
/// The link between an option and its variable.

#include <optional>
#include <string>

#include "config/raw_value.h"
#include "trainkit/config/config.h"

namespace trainkit::detail {

/// Binds an option to its variable.
class Binding {
 public:
  virtual ~Binding() = default;
  /// Converts `raw` to the variable's type, checks it, and stores it if `commit`. Returns nullopt on success.
  virtual std::optional<Fault> assign(const RawValue& raw, const OptionSpec& spec, bool commit) = 0;
  /// Returns the value as YAML. "null" for an empty string, an empty list and nullopt.
  virtual std::string to_yaml(const OptionSpec& spec) const = 0;
  /// Returns the value as a user would type it. Empty for an empty value.
  virtual std::string to_text() const = 0;
  /// Returns the placeholder of the value in --help, for example "N".
  virtual std::string metavar(const OptionSpec& spec) const = 0;
  /// Returns why to_yaml() could not write the default so that it can be read again; empty if it can.
  virtual std::string default_problem() const { return {}; }
  virtual bool is_bool() const { return false; }
  virtual bool is_list() const { return false; }
};

}  // namespace trainkit::detail
