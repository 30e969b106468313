#pragma once
/// Options under one heading of --help.

#include <string>
#include <utility>

#include "trainkit/config/config.h"

namespace trainkit {

/// Adds options to a parser, all under `heading`:
///
///   const OptionGroup add(parser, "Model");
///   add("dropout", &options.dropout, {.help = "Share of values dropped.", .min = 0, .max = 0.99});
class OptionGroup {
 public:
  /// `parser` must outlive it.
  OptionGroup(ConfigParser& parser, std::string heading) : parser_(parser), heading_(std::move(heading)) {}

  /// ConfigParser::add; the heading stands in the place of spec.group.
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
