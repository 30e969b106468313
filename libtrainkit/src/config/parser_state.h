#pragma once
/// What a ConfigParser knows: its options, its presets, and where each value came from.

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "raw_value.h"
#include "trainkit/core/error.h"

namespace trainkit {
namespace detail {

/// The sources of a value, the stronger the later.
enum class Layer { kDefault, kPreset, kFile, kFlag };

struct Option {
  std::string name;
  OptionSpec spec;
  std::unique_ptr<Binding> binding;
  /// --help and --version: no value, no --no- form.
  bool is_switch = false;
  /// Set by refuse().
  std::string refusal = {};
  /// The default as YAML, at add() or after set_defaults().
  std::string default_yaml = {};

  Layer layer = Layer::kDefault;
  /// "default", "default (cpu)", "preset small", "run.yaml:3:1", "--batch-size".
  std::string source = "default";
};

struct Preset {
  std::string name;
  Settings settings;
  std::string help;
};

}  // namespace detail

struct ConfigParser::State {
  ProgramInfo program;
  /// In the order of add(); --help keeps it.
  std::vector<std::unique_ptr<detail::Option>> options;
  /// Every name and alias, with '_' for '-'.
  std::map<std::string, detail::Option*, std::less<>> by_name;
  std::vector<detail::Preset> presets;
  // The parser's own options.
  std::string config_file;
  std::string preset;
  bool print_config = false, help = false, version = false;
  bool parsed = false;

  /// The option called `name`, with '-' and '_' alike; nullptr if there is none.
  detail::Option* find(std::string_view name) const;
  /// The same for names that the program itself writes: throws c10::Error if there is none.
  detail::Option& at(std::string_view name) const;
  std::vector<std::string> names() const;
};

}  // namespace trainkit
