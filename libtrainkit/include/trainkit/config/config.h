#pragma once
/// A program's settings: defaults < preset < file < flags, each value knowing where it came from.

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

/// A span of time as options give it: seconds, or a number with a unit as in 90s, 45m, 1h30m, 2d.
using Seconds = std::chrono::duration<double>;

/// A whole number, or the word "auto" (which is nullopt).
struct IntOrAuto {
  std::optional<int64_t> value = {};
  bool is_auto() const { return !value.has_value(); }
  bool operator==(const IntOrAuto&) const = default;
};

/// The types that a variable bound to an option may have. An enum is bound with its names, see ConfigParser::add.
template <class T>
concept OptionType = std::same_as<T, bool> || std::same_as<T, int> || std::same_as<T, int64_t> ||
    std::same_as<T, uint64_t> || std::same_as<T, double> || std::same_as<T, std::string> || std::same_as<T, Seconds> ||
    std::same_as<T, IntOrAuto> || std::same_as<T, std::vector<int>> || std::same_as<T, std::vector<int64_t>> ||
    std::same_as<T, std::vector<double>> || std::same_as<T, std::vector<std::string>> ||
    std::same_as<T, std::optional<int>> || std::same_as<T, std::optional<int64_t>> ||
    std::same_as<T, std::optional<double>> || std::same_as<T, std::optional<bool>> ||
    std::same_as<T, std::optional<Seconds>>;

/// What a path is for. A relative path of a configuration file starts at that file's folder, one of a flag at the
/// working directory.
enum class PathKind {
  kNone,    ///< Not a path.
  kInput,   ///< Read.
  kOutput,  ///< Written. In a file it may not climb with "..": settings from elsewhere write where they stand, or not.
};

/// What --help says of an option and what its value must be. Every member may be left out.
struct OptionSpec {
  /// One sentence.
  std::string help = {};
  /// Heading in --help.
  std::string group = "Options";
  /// Other names of the same option, in flags and in files.
  std::vector<std::string> aliases = {};
  /// Bounds of a number, of seconds, or of each element of a list; `above` is not itself allowed.
  std::optional<double> min = {}, max = {}, above = {};
  /// The words a string may be (any, if empty).
  std::vector<std::string> choices = {};
  /// Bounds on a list's length, and whether an element may stand twice. A list that is not given is empty all the same.
  size_t min_items = 1, max_items = 1024;
  bool unique_items = false;
  PathKind path = PathKind::kNone;
  /// Words that a path option takes as they are: "latest" of --resume.
  std::vector<std::string> path_words = {};
  /// How --help names the value; chosen from the type if empty.
  std::string metavar = {};
  /// The value has to come from somewhere.
  bool required = false;
  /// Names an action rather than a setting: not allowed in a file, left out of to_yaml().
  bool flag_only = false;
};

/// Names and values as text, for presets and late defaults: {{"batch_size", "8"}, {"gpu_ids", "0,1"}}.
using Settings = std::vector<std::pair<std::string, std::string>>;

/// What a command line asks the program to do.
enum class Request { kRun, kHelp, kVersion, kPrintConfig };

/// Who the program is, for --help and --version.
struct ProgramInfo {
  std::string name = {};
  std::string version = {};
  std::string description = {};
  /// Command lines that --help ends with.
  std::vector<std::string> examples = {};
};

namespace detail {
struct RawValue;
struct Fault;
struct Option;

/// Ties an option to its variable.
class Binding {
 public:
  virtual ~Binding() = default;
  /// Reads `raw` as the variable's type, checks it, and stores it if `commit`. Nullopt if all is well.
  virtual std::optional<Fault> assign(const RawValue& raw, const OptionSpec& spec, bool commit) = 0;
  /// The variable's value as YAML; "null" for nothing (an empty string, an empty list, nullopt).
  virtual std::string to_yaml(const OptionSpec& spec) const = 0;
  /// The value as a user would type it; empty for nothing.
  virtual std::string to_text() const = 0;
  /// How --help names a value, "N" for one.
  virtual std::string metavar(const OptionSpec& spec) const = 0;
  virtual bool is_bool() const { return false; }
  virtual bool is_list() const { return false; }
};

template <class T>
std::unique_ptr<Binding> make_binding(T* variable);  // config/binding.cpp

std::unique_ptr<Binding> make_choice_binding(std::vector<std::string> names, std::function<size_t()> get,
                                             std::function<void(size_t)> set);
}  // namespace detail

/// Typed options, read from a preset, a file and the command line.
///
///   int64_t batch_size = 16;
///   std::string data_dir;
///   ConfigParser parser({.name = "train", .version = "1.0"});
///   parser.add("batch_size", &batch_size, {.help = "Rows per step.", .min = 1, .max = 1 << 20});
///   parser.add("data_dir", &data_dir, {.help = "Folder to read.", .path = PathKind::kInput, .required = true});
///   parser.add_preset("small", {{"batch_size", "4"}}, "fits in 8 GB");
///   auto request = parser.parse(argc, argv);                       // --config run.yaml --batch-size=8
///   if (!request.ok()) return report(request.status());            // exit_code(), error_text() of core/error.h
///   parser.set_defaults({{"batch_size", "2"}}, "cpu");             // only where nobody gave a value
///   if (*request != Request::kRun) { std::cout << parser.text(*request); return 0; }
///
/// A variable's value at add() is its default. The flags --config FILE, --preset NAME, --print_config, --help (-h) and
/// --version are there from the start; docs/guide/config.md has the rules of the notation.
///
/// Errors (a user's mistake) are Status with an Error: exit code kUsage for flags, kConfig for a file with its
/// file:line:column. A program's mistake (an option added twice, a preset with an unknown option) throws c10::Error.
/// One thread; variables must outlive the parser.
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

  /// Adds an option whose value is an enum: add("mode", &mode, {{"fast", Mode::kFast}, {"exact", Mode::kExact}}).
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

  /// Adds `--preset name`. The options must be there already and the values must be valid.
  void add_preset(std::string name, Settings settings, std::string help = {});

  /// The program does not act on `name` (yet): another value than the default is an error that says `reason`.
  void refuse(std::string_view name, std::string reason);

  /// Reads the command line, and the preset and the file that it names, into the variables. Once.
  ///
  /// @return What is asked for. --help and --version win over every fault. After an error the variables are not to be
  ///   used. kInvalidArgument for every error, with these ids:
  ///     cli.unknown, config.key          no such flag or key; the nearest name is the hint
  ///     cli.duplicate, config.duplicate  given twice, under any of its names
  ///     cli.value, config.type, config.value   not of the type; out of range
  ///     cli.missing, config.missing      no value after a flag; a required option that nobody gave
  ///     cli.positional                   a word that belongs to no flag
  ///     cli.unsupported, config.unsupported    see refuse()
  ///     config.file, config.size, config.encoding, config.syntax, config.empty   the file itself
  absl::StatusOr<Request> parse(int argc, const char* const* argv);
  /// The same for arguments without the program's name.
  absl::StatusOr<Request> parse(const std::vector<std::string>& arguments);

  /// Other defaults, known only after parse() (by device, by memory); print_config says "default (<reason>)".
  /// Leaves alone what a preset, a file or a flag gave. Throws c10::Error for an unknown name or an invalid value.
  void set_defaults(const Settings& settings, std::string_view reason);

  /// True if a preset, a file or a flag gave the value.
  bool is_given(std::string_view name) const;
  /// Where the value came from: "default", "default (cpu)", "preset small", "run.yaml:3:1", "--batch-size".
  std::string source(std::string_view name) const;

  /// The Status for a value that breaks a rule of the program's own, blamed on where it came from. What was met is
  /// added unless the option has no value.
  absl::Status invalid(std::string_view name, std::string problem, std::string expected = {},
                       std::string hint = {}) const;

  /// Every option but paths, with its value as to_yaml writes it: what processes of one run must have alike, whose
  /// machines may keep their files in different places.
  Settings settings() const;

  /// What to print for a request: help, version or print_config. Empty for kRun.
  std::string text(Request request) const;
  std::string help() const;
  /// Every value as YAML, each with where it came from as a comment. As a --config file it gives the same values again:
  /// paths are absolute, "null" is nothing.
  std::string to_yaml() const;

 private:
  void add_option(std::string name, std::unique_ptr<detail::Binding> binding, OptionSpec spec);
  absl::Status apply_preset();
  absl::Status check_complete() const;
  /// An error about `option`'s value, blamed on where the value came from.
  absl::Status blame(const detail::Option& option, const char* id, detail::Fault fault) const;
  std::unique_ptr<State> state_;
};

}  // namespace trainkit
