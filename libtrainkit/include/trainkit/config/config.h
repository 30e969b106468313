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

/// Types of variables that can be bound to an option. For others, such as enums, ConfigParser::add takes the names of
/// the values.
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

/// Another option that an option needs to have an effect. Values are written as on the command line; a flag without a
/// value is "true" or "false".
struct OptionNeed {
  std::string option;
  /// It must have one of these values, or, if `excludes`, none of them.
  std::vector<std::string> values;
  bool excludes = false;
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
  /// Modes of the program that use the option; any if empty. And the options that it needs, all of them. See
  /// ConfigParser::check_used.
  std::vector<std::string> modes = {};
  std::vector<OptionNeed> needs = {};
};

/// What a command line asks a program to do, see ConfigParser::check_used.
struct ProgramMode {
  /// An option is used if one of these is among its modes.
  std::vector<std::string> names;
  /// How an error calls it: "with --sample".
  std::string text;
};

/// Option names and values as text, for presets and late defaults: {{"batch_size", "8"}, {"gpu_ids", "0,1"}}.
using Settings = std::vector<std::pair<std::string, std::string>>;

/// Action requested by the command line.
enum class Request { kRun, kHelp, kVersion, kPrintConfig, kCompletion };

/// Program name, version and description for --help and --version.
struct ProgramInfo {
  std::string name = {};
  std::string version = {};
  std::string description = {};
  /// Example command lines. --help shows up to four of the first ones, --help all shows all.
  std::vector<std::string> examples = {};
  /// Words before the flags in the usage line: "RUN OUT", "RUN CLIP...". See ConfigParser::take_words.
  std::string words = {};
  /// The program's own flags that --help lists, in this order. Empty: all flags outside of shared_groups. --help all
  /// lists every flag, --help GROUP those of a heading.
  std::vector<std::string> help_flags = {};
  /// Headings of flags that several programs share, listed after the program's own, and the flags of them that --help
  /// lists.
  std::vector<std::string> shared_groups = {}, shared_flags = {};
  /// Names and summaries of the program's subcommands, which the program itself reads.
  std::vector<std::pair<std::string, std::string>> commands = {};
  /// Last paragraph of --help all.
  std::string remark = {};
};

namespace detail {
struct RawValue;
struct Fault;
struct Option;

class Binding;

template <class T>
std::shared_ptr<Binding> make_binding(T* variable);  // config/binding.cpp

std::shared_ptr<Binding> make_choice_binding(std::vector<std::string> names, std::function<size_t()> get,
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
/// --help [all|GROUP|FLAG] (-h), --completion bash|zsh and --version. The syntax is described in docs/guide/config.md.
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

  /// Adds option `name` (snake_case), bound to `*variable`. Throws c10::ValueError for a default that a configuration
  /// file cannot hold: infinity, NaN, a list with an empty string.
  template <OptionType T>
  void add(std::string name, T* variable, OptionSpec spec = {}) {
    add_option(std::move(name), detail::make_binding(variable), std::move(spec));
  }

  /// Adds an option whose values have names: add("mode", &mode, {{"fast", Mode::kFast}, {"exact", Mode::kExact}}). A
  /// default without a name, such as nullopt of a std::optional<Mode>, is an empty value: null in a file.
  template <class T>
  void add(std::string name, T* variable, std::vector<std::pair<std::string, T>> names, OptionSpec spec = {}) {
    std::vector<std::string> words;
    words.reserve(names.size());
    for (const auto& [word, value] : names) words.push_back(word);
    spec.choices = words;
    const auto get = [variable, names] {
      size_t i = 0;
      while (i < names.size() && names[i].second != *variable) ++i;
      return i;
    };
    const auto set = [variable, names, empty = *variable](size_t i) {
      *variable = i < names.size() ? names[i].second : empty;
    };
    add_option(std::move(name), detail::make_choice_binding(std::move(words), get, set), std::move(spec));
  }

  /// Adds `--preset name`. Its options must have been added before, and its values must be valid.
  void add_preset(std::string name, Settings settings, std::string help = {});

  /// Marks an option as not supported (yet): any value other than its default is an error with `reason`.
  void refuse(std::string_view name, std::string reason);

  /// Lets a command line continue a run with the run's own settings. parse() calls `find` after it has stored the
  /// flags, the file and the preset. `find` returns the configuration file of the run to continue, or "" if there is
  /// none. Its values replace defaults; the preset, the file and the flags replace its values. Options of `not_kept`
  /// do not take its values. Call it after add().
  void set_run_file(std::function<absl::StatusOr<std::string>()> find, const std::vector<std::string>& not_kept);
  /// Names options that a continued run cannot change: sizes of the model, the data. Another value is an error
  /// (cli.fixed, config.fixed).
  void fix(const std::vector<std::string>& names);
  /// Whether the value differs from that of the run to continue. False if there is no such run.
  bool is_changed(std::string_view name) const;
  /// Returns the options that differ from the run to continue, such as "lr: 0.001 -> 0.01 (--lr)".
  std::vector<std::string> changes() const;

  /// Parses the command line, and the preset and the file that it names, into the variables. Call it once.
  ///
  /// @return The requested action. --help, --completion and --version take precedence over errors of other flags. After
  ///   an error the variables are unspecified. All errors are kInvalidArgument, with these ids:
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

  /// Removes the words of ProgramInfo::words from `arguments` and returns them: those before the first flag or, if
  /// there are none, as many last ones as the program needs. Call it before parse(). With "..." at least one word is
  /// needed and any number is accepted, otherwise one for each name: cli.word (exit code 2). --help, --version and
  /// --completion need none: the result is empty. --print_config may have none.
  absl::StatusOr<std::vector<std::string>> take_words(std::vector<std::string>& arguments) const;

  /// Replaces defaults by values known only after parse() (for a device, for its memory). print_config shows their
  /// source as "default (<reason>)". Values given by a preset, a file or a flag stay. Throws c10::Error for an unknown
  /// name or an invalid value.
  void set_defaults(const Settings& settings, std::string_view reason);

  /// Adds a remark to the source of a value that the program has changed: "preset small, shortened to a tenth of the
  /// run".
  void add_remark(std::string_view name, std::string_view remark) const;
  /// Replaces the help of an option, such as one that has another meaning in a subcommand.
  void set_help(std::string_view name, std::string help);
  /// Replaces OptionSpec::modes of an option, such as one that this program uses in fewer modes than others do.
  void set_modes(std::string_view name, std::vector<std::string> modes);

  /// Refuses a flag of the command line that has no effect (cli.unused, exit code 2): the program is in another mode
  /// than OptionSpec::modes, or an option that it needs has another value. Only flags are checked: a preset, a file and
  /// the run to continue may have settings for other modes. A flag with its default value, and --no-<flag>, need no
  /// other option. `resolved` replaces values that are known only now ("auto"). Call it after parse() and the late
  /// defaults.
  absl::Status check_used(const ProgramMode& mode, const Settings& resolved = {}) const;
  /// Returns where each option is used, in the order of add(), without the built-in ones: the table that check_used()
  /// follows.
  struct OptionUse {
    std::string name;
    std::vector<std::string> modes;
    std::vector<OptionNeed> needs;
  };
  std::vector<OptionUse> uses() const;

  /// Returns the path of --config; empty if it was not given.
  const std::string& config_file() const;
  /// Whether a preset, a file or a flag gave the value. False for a value of the run to continue.
  bool is_given(std::string_view name) const;
  /// Whether the value is a default: neither given nor of the run to continue.
  bool is_default(std::string_view name) const;
  /// Returns the source of the value: "default", "default (cpu)", "preset small", "run.yaml:3:1", "--batch-size". The
  /// file may be that of the run to continue.
  std::string source(std::string_view name) const;

  /// Returns a Status for a value that breaks a rule of the program. It names the source of the value, and the value
  /// itself unless that is empty.
  absl::Status invalid(std::string_view name, std::string problem, std::string expected = {},
                       std::string hint = {}) const;

  /// Returns every option except paths, with its value as to_yaml writes it. All ranks of a run must agree on them;
  /// paths may differ between machines.
  Settings settings() const;

  /// Returns the text to print for a request: help, completion script, version or print_config. Empty for kRun.
  std::string text(Request request) const;
  /// Returns the help about `topic`: "" is one screen with the most used flags, "all" every flag, or the name of a
  /// heading or a flag. Lines wrap at the environment variable COLUMNS, else at the width of the terminal of stdout,
  /// else at 80 columns. Throws c10::Error for another topic.
  std::string help(std::string_view topic = "all") const;
  /// Returns every value as YAML, with its source as a comment. Used as a --config file, it gives the same values
  /// again: paths are absolute, "null" is an empty value.
  std::string to_yaml() const;

 private:
  void add_option(std::string name, std::shared_ptr<detail::Binding> binding, OptionSpec spec);
  absl::Status apply_run_file(const std::string& path);
  absl::Status check_fixed() const;
  absl::Status check_complete() const;
  /// Refuses relative paths of flags if the working folder has been deleted.
  absl::Status check_paths() const;
  absl::StatusOr<Request> parse_question(const std::vector<std::string>& arguments, size_t at);
  /// Returns an error about the value of `option`, naming the value's source.
  absl::Status blame(const detail::Option& option, const char* id, detail::Fault fault) const;
  std::unique_ptr<State> state_;
};

// ---- Groups options under one heading of --help.

/// Adds options to a parser under `heading`:
///
///   const OptionGroup add(parser, "Model");
///   add("dropout", &options.dropout, {.help = "Share of values dropped.", .min = 0, .max = 0.99});
class OptionGroup {
 public:
  /// `parser` must outlive this object. `modes` are those of options that name none.
  OptionGroup(ConfigParser& parser, std::string heading, std::vector<std::string> modes = {})
      : parser_(parser), heading_(std::move(heading)), modes_(std::move(modes)) {}

  /// Calls ConfigParser::add with `heading` as spec.group.
  template <class T>
  void operator()(const std::string& name, T* variable, OptionSpec spec) const {
    spec.group = heading_;
    if (spec.modes.empty()) spec.modes = modes_;
    parser_.add(name, variable, std::move(spec));
  }

 private:
  ConfigParser& parser_;
  std::string heading_;
  std::vector<std::string> modes_;
};

}  // namespace trainkit
