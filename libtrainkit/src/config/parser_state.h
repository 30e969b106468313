#pragma once
/// Holds the state of a ConfigParser: options, presets, and the source of each value.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "config/binding.h"
#include "config/raw_value.h"
#include "trainkit/core/error.h"

namespace trainkit {
namespace detail {

/// Heading of the built-in flags.
inline constexpr char kBuiltInGroup[] = "Configuration";

/// Returns the name of a heading as a word of the command line: "Tables of interactions" -> "tables_of_interactions".
std::string topic_name(std::string_view group);

/// Sources of a value, in ascending precedence.
enum class Layer { kDefault, kRun, kPreset, kFile, kFlag };

struct Option {
  std::string name;
  OptionSpec spec;
  std::shared_ptr<Binding> binding;
  /// Whether the option takes no value and has no --no- form: --help and --version.
  bool is_switch = false;
  /// Reason given to refuse(). Empty if supported.
  std::string refusal = {};
  /// Default as YAML, from add() or set_defaults().
  std::string default_yaml = {};
  /// Value as YAML in the run to continue, and its source. Empty if there is none.
  std::string run_yaml = {}, run_source = {};
  /// Whether a continued run must keep its value, or takes none of it.
  bool is_fixed = false, is_not_kept = false;
  /// Whether the value differs from that of the run to continue.
  bool is_changed() const { return !run_yaml.empty() && !is_not_kept && binding->to_yaml(spec) != run_yaml; }

  Layer layer = Layer::kDefault;
  /// Source of the value: "default", "default (cpu)", "preset small", "run.yaml:3:1", "--batch-size".
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
  /// Options in the order of add(), which is also the order of --help.
  std::vector<std::unique_ptr<detail::Option>> options;
  /// All names and aliases, with '-' replaced by '_'.
  std::map<std::string, detail::Option*, std::less<>> by_name;
  std::vector<detail::Preset> presets;
  std::function<absl::StatusOr<std::string>()> find_run_file;
  // Built-in options.
  std::string config_file;
  std::string preset;
  bool print_config = false, help = false, version = false;
  std::string completion;
  std::string help_topic;
  bool parsed = false;

  /// Returns the option named `name` ('-' and '_' are equivalent), or nullptr.
  detail::Option* find(std::string_view name) const;
  /// Same, for names written in the program: throws c10::Error if there is none.
  detail::Option& at(std::string_view name) const;
  std::vector<std::string> names() const;
  /// Returns the headings of the options: the program's own, the shared ones, then that of the built-in flags.
  std::vector<std::string> groups() const;
  /// Returns the heading that `topic` names ("tables_of_interactions"), or "".
  std::string group_of_topic(std::string_view topic) const;
};

}  // namespace trainkit
