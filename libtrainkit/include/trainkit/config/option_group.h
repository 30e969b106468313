#pragma once
/// Groups options under one heading of --help.

#include <string>
#include <utility>

#include "trainkit/config/config.h"

namespace trainkit {

/// Adds options to a parser under `heading`:
///
///   const OptionGroup add(parser, "Model");
///   add("dropout", &options.dropout, {.help = "Share of values dropped.", .min = 0, .max = 0.99});
class OptionGroup {
 public:
  /// `parser` must outlive this object.
  OptionGroup(ConfigParser& parser, std::string heading) : parser_(parser), heading_(std::move(heading)) {}

  /// Calls ConfigParser::add with `heading` as spec.group.
  template <class T>
  void operator()(const std::string& name, T* variable, OptionSpec spec) const {
    spec.group = heading_;
    parser_.add(name, variable, std::move(spec));
  }

 private:
  ConfigParser& parser_;
  std::string heading_;
};

}  // namespace trainkit
