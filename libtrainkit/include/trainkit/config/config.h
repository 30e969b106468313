#pragma once
/// Parses a program's settings from defaults, a preset, a file and flags, and records the source of each value.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace trainkit {

/// A duration option: seconds, or a number with units as in 90s, 45m, 1h30m, 2d.
using Seconds = std::chrono::duration<double>;

/// An integer, or the word "auto" (nullopt).
struct IntOrAuto {
  std::optional<int64_t> value = {};
  bool is_auto() const { return !value.has_value(); }
  bool operator==(const IntOrAuto&) const = default;
};

/// Types of variables that can be bound to an option. For an enum see ConfigParser::add.
template <class T>
concept OptionType = std::same_as<T, bool> || std::same_as<T, int> || std::same_as<T, int64_t> ||
    std::same_as<T, uint64_t> || std::same_as<T, double> || std::same_as<T, std::string> || std::same_as<T, Seconds> ||
    std::same_as<T, IntOrAuto> || std::same_as<T, std::vector<int>> || std::same_as<T, std::vector<int64_t>> ||
    std::same_as<T, std::vector<double>> || std::same_as<T, std::vector<std::string>> ||
    std::same_as<T, std::optional<int>> || std::same_as<T, std::optional<int64_t>> ||
    std::same_as<T, std::optional<double>> || std::same_as<T, std::optional<bool>> ||
    std::same_as<T, std::optional<Seconds>>;

/// Purpose of a path option. A relative path in a configuration file is relative to that file's folder, one in a flag
/// to the working directory.
enum class PathKind {
  kNone,    ///< Not a path.
  kInput,   ///< An input path.
  kOutput,  ///< An output path. In a file it may not contain "..": absolute, or below the file's folder.
};

/// Help text and validation rules of an option. Every member is optional.
struct OptionSpec {
  /// Description: one sentence.
  std::string help = {};
  /// Heading in --help.
  std::string group = "Options";
  /// Other names of the option, in flags and in files.
  std::vector<std::string> aliases = {};
  /// Bounds of a number, a duration, or each element of a list. `min` and `max` are inclusive, `above` is exclusive.
  std::optional<double> min = {}, max = {}, above = {};
  /// Allowed values of a string. Any value if empty.
  std::vector<std::string> choices = {};
  /// Bounds of a list's length, and whether its elements must be unique. The default of a list may be empty regardless
  /// of min_items.
  size_t min_items = 1, max_items = 1024;
  bool unique_items = false;
  PathKind path = PathKind::kNone;
  /// Words that a path option takes unchanged, such as "latest" of --resume.
  std::vector<std::string> path_words = {};
  /// Placeholder of the value in --help. Chosen from the type if empty.
  std::string metavar = {};
  /// Whether a preset, the file or a flag must give the value.
  bool required = false;
  /// An action, not a setting: not allowed in a file and omitted from to_yaml().
  bool flag_only = false;
};

/// Option names and values as text, for presets and late defaults: {{"batch_size", "8"}, {"gpu_ids", "0,1"}}.
using Settings = std::vector<std::pair<std::string, std::string>>;

/// Action requested by the command line.
enum class Request { kRun, kHelp, kVersion, kPrintConfig };

/// Program name, version and description for --help and --version.
struct ProgramInfo {
  std::string name = {};
  std::string version = {};
  std::string description = {};
  /// Example command lines at the end of --help.
  std::vector<std::string> examples = {};
  /// Words before the flags in the usage line, which the program itself reads: "RUN CLIP...".
  std::string words = {};
  /// Flags that --help lists, in this order. Empty: all.
  std::vector<std::string> help_flags = {};
};

namespace detail {
struct RawValue;
struct Fault;
struct Option;

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
  virtual bool is_bool() const { return false; }
  virtual bool is_list() const { return false; }
};

template <class T>
std::unique_ptr<Binding> make_binding(T* variable);  // config/binding.cpp

std::unique_ptr<Binding> make_choice_binding(std::vector<std::string> names, std::function<size_t()> get,
                                             std::function<void(size_t)> set);
}  // namespace detail

/// Parses typed options from a preset, a file and the command line.
///
///   int64_t batch_size = 16;
///   std::string data_dir;
///   ConfigParser parser({.name = "train", .version = "1.0"});
///   parser.add("batch_size", &batch_size, {.help = "Rows per step.", .min = 1, .max = 1 << 20});
///   parser.add("data_dir", &data_dir, {.help = "Folder to read.", .path = PathKind::kInput, .required = true});
///   parser.add_preset("small", {{"batch_size", "4"}}, "fits in 8 GB");
///   auto request = parser.parse(argc, argv);                       // --config run.yaml --batch-size=8
///   if (!request.ok()) return report(request.status());            // exit_code(), error_text() of core/error.h
///   parser.set_defaults({{"batch_size", "2"}}, "cpu");             // only options that were not given
///   if (*request != Request::kRun) { std::cout << parser.text(*request); return 0; }
///
/// The value of a variable at add() is its default. Built-in flags: --config FILE, --preset NAME, --print_config,
/// --help (-h) and --version. The syntax is described in docs/guide/config.md.
///
/// User errors are returned as a Status with an Error: exit code kUsage for flags, kConfig for a file, with
/// file:line:column. Programming errors (an option added twice, a preset with an unknown option) throw c10::Error.
///
/// Not thread-safe. Variables must outlive the parser.
class ConfigParser {
 public:
  struct State;  // config/parser_state.h

  explicit ConfigParser(ProgramInfo program);
  ~ConfigParser();
  ConfigParser(const ConfigParser&) = delete;
  ConfigParser& operator=(const ConfigParser&) = delete;

  /// Adds option `name` (snake_case), bound to `*variable`.
  template <OptionType T>
  void add(std::string name, T* variable, OptionSpec spec = {}) {
    add_option(std::move(name), detail::make_binding(variable), std::move(spec));
  }

  /// Adds an enum option: add("mode", &mode, {{"fast", Mode::kFast}, {"exact", Mode::kExact}}).
  template <class Enum>
  requires std::is_enum_v<Enum>
  void add(std::string name, Enum* variable, std::vector<std::pair<std::string, Enum>> names, OptionSpec spec = {}) {
    std::vector<std::string> words;
    for (const auto& [word, value] : names) words.push_back(word);
    spec.choices = words;
    const auto get = [variable, names] {
      size_t i = 0;
      while (i < names.size() && names[i].second != *variable) ++i;
      return i;
    };
    const auto set = [variable, names](size_t i) { *variable = names.at(i).second; };
    add_option(std::move(name), detail::make_choice_binding(std::move(words), get, set), std::move(spec));
  }

  /// Adds `--preset name`. Its options must have been added before, and its values must be valid.
  void add_preset(std::string name, Settings settings, std::string help = {});

  /// Marks an option as not supported (yet): any value other than its default is an error with `reason`.
  void refuse(std::string_view name, std::string reason);

  /// Parses the command line, and the preset and the file that it names, into the variables. Call it once.
  ///
  /// @return The requested action. --help and --version take precedence over every error. After an error the variables
  /// are
  ///   unspecified. All errors are kInvalidArgument, with these ids:
  ///     cli.unknown, config.key          unknown flag or key; the hint is the nearest name
  ///     cli.duplicate, config.duplicate  given twice, under any of its names
  ///     cli.value, config.type, config.value   wrong type; out of range
  ///     cli.missing, config.missing      a flag without a value; a required option that was not given
  ///     cli.positional                   a word that belongs to no flag
  ///     cli.unsupported, config.unsupported    see refuse()
  ///     config.file, config.size, config.encoding, config.syntax, config.empty   an invalid file
  absl::StatusOr<Request> parse(int argc, const char* const* argv);
  /// Same, for arguments without the program name.
  absl::StatusOr<Request> parse(const std::vector<std::string>& arguments);

  /// Replaces defaults by values known only after parse() (for a device, for its memory). print_config shows their
  /// source as "default (<reason>)". Values given by a preset, a file or a flag stay. Throws c10::Error for an unknown
  /// name or an invalid value.
  void set_defaults(const Settings& settings, std::string_view reason);

  /// Whether a preset, a file or a flag gave the value.
  bool is_given(std::string_view name) const;
  /// Returns the source of the value: "default", "default (cpu)", "preset small", "run.yaml:3:1", "--batch-size".
  std::string source(std::string_view name) const;

  /// Returns a Status for a value that breaks a rule of the program. It names the source of the value, and the value
  /// itself unless that is empty.
  absl::Status invalid(std::string_view name, std::string problem, std::string expected = {},
                       std::string hint = {}) const;

  /// Returns every option except paths, with its value as to_yaml writes it. All ranks of a run must agree on them;
  /// paths may differ between machines.
  Settings settings() const;

  /// Returns the text to print for a request: help, version or print_config. Empty for kRun.
  std::string text(Request request) const;
  std::string help() const;
  /// Returns every value as YAML, with its source as a comment. Used as a --config file, it gives the same values
  /// again: paths are absolute, "null" is an empty value.
  std::string to_yaml() const;

 private:
  void add_option(std::string name, std::unique_ptr<detail::Binding> binding, OptionSpec spec);
  absl::Status apply_preset();
  absl::Status check_complete() const;
  /// Returns an error about the value of `option`, naming the value's source.
  absl::Status blame(const detail::Option& option, const char* id, detail::Fault fault) const;
  std::unique_ptr<State> state_;
};

}  // namespace trainkit
