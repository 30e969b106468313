#include "trainkit/config/config.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "parser_state.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

using detail::Fault;
using detail::FileEntry;
using detail::Layer;
using detail::Option;
using detail::RawValue;
using Kind = RawValue::Kind;

std::string normalized(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

/// A flag of the command line, or a key of the file.
struct Given {
  Option* option = nullptr;
  RawValue value = {};
  Layer layer = Layer::kFlag;
  /// Source of the value: the flag as typed, or file:line:column.
  std::string source = {};
};

/// Returns an error about `field`, at `where` in the file, or on the command line if `where` is empty.
absl::Status error(ExitCode code, std::string id, std::string where, std::string field, Fault fault) {
  return to_status({.exit_code = code,
                    .id = std::move(id),
                    .where = std::move(where),
                    .field = std::move(field),
                    .problem = std::move(fault.problem),
                    .got = std::move(fault.got),
                    .expected = std::move(fault.expected),
                    .hint = std::move(fault.hint)});
}

absl::Status flag_error(std::string id, std::string_view flag, Fault fault) {
  return error(ExitCode::kUsage, "cli." + std::move(id), "", std::string(flag), std::move(fault));
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& names, const char* prefix) {
  std::string nearest = nearest_name(name, names);
  if (nearest.empty() && !name.empty()) {  // an abbreviation is an error, but a good guess for the hint
    const auto begins =
        std::find_if(names.begin(), names.end(), [&](const auto& known) { return known.starts_with(name); });
    if (begins != names.end()) nearest = *begins;
  }
  return nearest.empty() ? "see --help" : "did you mean " + std::string(prefix) + nearest + "?";
}

/// Whether `argument` is --name or -h. "-1" and "-" are values.
bool is_flag(std::string_view argument) {
  return (argument.size() > 2 && argument.starts_with("--") && !(argument[2] >= '0' && argument[2] <= '9')) ||
         argument == "-h";
}

/// Splits "0,1,2" into a list of texts.
RawValue split_list(const std::string& text) {
  RawValue list{.kind = Kind::kList};
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    list.items.push_back({.text = text.substr(begin, end - begin)});
    begin = end + 1;
  }
  return list;
}

/// Converts a text from a preset or a default to a raw value of `option`.
RawValue text_value(const Option& option, const std::string& text) {
  if (!option.binding->is_list()) return RawValue{.text = text};
  // A path may contain a comma.
  if (option.spec.path != PathKind::kNone) return RawValue{.kind = Kind::kList, .items = {{.text = text}}};
  return split_list(text);
}

/// Makes a path from a file absolute, starting at the file's folder. An output path may not contain "..".
std::optional<Fault> anchor_path(const OptionSpec& spec, const std::filesystem::path& folder, RawValue& value) {
  for (RawValue& item : value.items) {
    if (auto fault = anchor_path(spec, folder, item)) return fault;
  }
  const auto& words = spec.path_words;
  if (value.kind != Kind::kString || value.text.empty() ||
      std::find(words.begin(), words.end(), value.text) != words.end()) {
    return std::nullopt;
  }
  const std::filesystem::path path(value.text);
  if (spec.path == PathKind::kOutput && std::find(path.begin(), path.end(), "..") != path.end()) {
    return Fault{.problem = "output path contains '..'",
                 .got = value.text,
                 .expected = "an absolute path, or one below the file's folder",
                 .hint = "give it as a flag instead",
                 .wrong_type = false};
  }
  if (path.is_relative()) value.text = detail::plain_path(folder / path);
  return std::nullopt;
}

/// Shortens a flag for an error message.
std::string shown(std::string_view flag) { return std::string(flag.substr(0, 200)); }

/// Splits the command line into flags with raw values. Checks names and the number of values, not types.
class CommandLine {
 public:
  CommandLine(const ConfigParser::State& state, const std::vector<std::string>& arguments)
      : state_(state), arguments_(arguments) {}

  absl::StatusOr<std::vector<Given>> read() {
    std::vector<Given> flags;
    std::map<const Option*, std::string> seen;
    while (at_ < arguments_.size()) {
      TRAINKIT_ASSIGN_OR_RETURN(Given flag, read_flag());
      const auto [first, is_new] = seen.emplace(flag.option, flag.source);
      if (!is_new) {
        const std::string also = first->second == flag.source ? "" : " (also as " + first->second + ")";
        return flag_error("duplicate", flag.source, {.problem = "given twice" + also, .hint = "give each flag once"});
      }
      flags.push_back(std::move(flag));
    }
    return flags;
  }

 private:
  absl::StatusOr<Given> read_flag() {
    const std::string& argument = arguments_[at_++];
    if (!is_flag(argument)) return unknown(argument);
    const size_t equals = argument.find('=');
    const std::string typed = shown(std::string_view(argument).substr(0, equals));
    const std::string name = argument == "-h" ? "help" : normalized(std::string_view(argument).substr(2, equals - 2));
    Given flag{.option = state_.find(name), .source = typed};
    const bool negated = flag.option == nullptr && name.starts_with("no_");
    if (negated) flag.option = state_.find(name.substr(3));
    if (flag.option == nullptr || (negated && !has_negation(*flag.option))) return unknown(argument);
    const bool no_value = negated || flag.option->is_switch;
    if (equals != std::string::npos) {
      if (no_value)
        return flag_error("value", typed, {.problem = "takes no value", .got = argument.substr(equals + 1)});
      if (equals + 1 == argument.size()) return missing(flag);
      flag.value = text_value(*flag.option, argument.substr(equals + 1));
    } else if (no_value || flag.option->binding->is_bool()) {
      flag.value.text = negated ? "false" : "true";
      // There are no positional arguments, so a word after a boolean is its value.
      if (!no_value && has_word()) flag.value.text = arguments_[at_++];
    } else if (!has_word()) {
      return missing(flag);
    } else if (flag.option->binding->is_list()) {
      flag.value.kind = Kind::kList;
      while (has_word()) {
        for (RawValue& item : text_value(*flag.option, arguments_[at_++]).items) {
          flag.value.items.push_back(std::move(item));
        }
      }
    } else {
      flag.value.text = arguments_[at_++];
    }
    return flag;
  }

  bool has_word() const { return at_ < arguments_.size() && !is_flag(arguments_[at_]); }
  static bool has_negation(const Option& option) { return option.binding->is_bool() && !option.is_switch; }

  static absl::Status missing(const Given& flag) {
    return flag_error("missing", flag.source,
                      {.problem = "no value",
                       .expected = flag.option->binding->metavar(flag.option->spec),
                       .hint = "write a value that begins with -- as " + flag.source + "=VALUE"});
  }

  absl::Status unknown(const std::string& argument) const {
    if (!argument.starts_with('-') || argument.size() < 2 || !is_flag(argument)) {
      return flag_error("positional", shown(argument),
                        {.problem = "unexpected argument", .hint = "put a value after its flag"});
    }
    const std::string name = normalized(shown(argument.substr(2, argument.find('=') - 2)));
    std::vector<std::string> names = state_.names();
    for (const auto& [known, option] : state_.by_name) {
      if (name.starts_with("no_") && has_negation(*option)) names.push_back("no_" + known);
    }
    return flag_error("unknown", shown(argument.substr(0, argument.find('='))),
                      {.problem = "no such flag", .hint = did_you_mean(name, names, "--")});
  }

  const ConfigParser::State& state_;
  const std::vector<std::string>& arguments_;
  size_t at_ = 0;
};

/// Checks a value, and stores it unless a source of higher precedence gave one.
absl::Status store(const Given& given, const std::string& config_file) {
  Option& option = *given.option;
  const bool commit = given.layer > option.layer;
  if (auto fault = option.binding->assign(given.value, option.spec, commit)) {
    if (given.layer == Layer::kFlag) return flag_error("value", given.source, std::move(*fault));
    const std::string where =
        fault->line > 0 ? detail::file_position(config_file, fault->line, fault->column) : given.source;
    return error(ExitCode::kConfig, fault->wrong_type ? "config.type" : "config.value", where, option.name,
                 std::move(*fault));
  }
  if (commit) {
    option.layer = given.layer;
    option.source = given.source;
  }
  return absl::OkStatus();
}

/// Converts a key of the file to an option with a value.
absl::StatusOr<Given> read_key(const ConfigParser::State& state, const std::string& path, std::set<const Option*>& seen,
                               FileEntry entry, Layer layer) {
  Given given{.option = state.find(entry.key), .value = std::move(entry.value), .layer = layer};
  const auto refuse = [&](const char* id, Fault fault) {
    const std::string where = detail::file_position(path, entry.line, entry.column);
    return error(ExitCode::kConfig, id, where, entry.key, std::move(fault));
  };
  if (given.option == nullptr) {
    const bool section = given.value.kind == Kind::kMap;
    return refuse("config.key", {.problem = "no such key",
                                 .hint = section ? "keys are flag names, without sections"
                                                 : did_you_mean(normalized(entry.key), state.names(), "")});
  }
  if (given.option->spec.flag_only) return refuse("config.key", {.problem = "can only be given as a flag"});
  if (!seen.insert(given.option).second) return refuse("config.duplicate", {.problem = "given twice"});
  given.source = detail::file_position(path, given.value.line, given.value.column);
  if (given.option->spec.path != PathKind::kNone) {
    const auto folder = std::filesystem::path(path).parent_path();
    if (auto fault = anchor_path(given.option->spec, folder, given.value)) {
      return error(ExitCode::kConfig, "config.value", given.source, entry.key, std::move(*fault));
    }
  }
  return given;
}

/// Reads the file's settings in order, so that YAML and JSON report the same first error.
absl::Status read_file(const ConfigParser::State& state, const std::string& path, Layer layer) {
  TRAINKIT_ASSIGN_OR_RETURN(auto entries, detail::read_config_file(path));
  std::set<const Option*> seen;
  for (FileEntry& entry : entries) {
    TRAINKIT_ASSIGN_OR_RETURN(const Given given, read_key(state, path, seen, std::move(entry), layer));
    if (layer == Layer::kRun && given.option->is_not_kept) continue;
    TRAINKIT_RETURN_IF_ERROR(store(given, path));
    if (layer != Layer::kRun) continue;
    given.option->run_yaml = given.option->binding->to_yaml(given.option->spec);
    given.option->run_source = given.source;
  }
  return absl::OkStatus();
}

}  // namespace

ConfigParser::ConfigParser(ProgramInfo program) : state_(std::make_unique<State>()) {
  state_->program = std::move(program);
  const auto flag = [](const char* help) {
    return OptionSpec{.help = help, .group = detail::kBuiltInGroup, .flag_only = true};
  };
  OptionSpec file = flag("YAML or JSON configuration file. Its keys are flag names.");
  file.path = PathKind::kInput;
  add("config", &state_->config_file, file);
  add("preset", &state_->preset,
      {.help = "Preset of settings; --help configuration lists them.",
       .group = detail::kBuiltInGroup,
       .metavar = "NAME"});
  add("print_config", &state_->print_config, flag("Print each value and its source, then exit."));
  OptionSpec help = flag("Print help and exit (-h): the most used flags, all of them, those of a heading, or one.");
  help.metavar = "[all|GROUP|FLAG]";
  add("help", &state_->help, help);
  OptionSpec completion = flag("Print a script that completes this command line in a shell, and exit.");
  completion.choices = {"bash", "zsh"};
  add("completion", &state_->completion, completion);
  add("version", &state_->version, flag("Print the version and exit."));
  for (const char* name : {"print_config", "help", "version"}) state_->at(name).is_switch = true;
}

ConfigParser::~ConfigParser() = default;

void ConfigParser::add_option(std::string name, std::shared_ptr<detail::Binding> binding, OptionSpec spec) {
  TORCH_CHECK(!state_->parsed, "add ", name, " before parse()");
  auto option = std::make_unique<Option>(Option{.name = name, .spec = std::move(spec), .binding = std::move(binding)});
  option->default_yaml = option->binding->to_yaml(option->spec);
  std::vector<std::string> names = option->spec.aliases;
  names.insert(names.begin(), name);
  for (const std::string& alias : names) {
    const std::string key = normalized(alias);
    const bool valid = key.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos;
    TORCH_CHECK(valid && !key.empty() && !key.starts_with("no_"), "not a name for an option: '", alias, "'");
    TORCH_CHECK(state_->by_name.emplace(key, option.get()).second, "option ", alias, " was already added");
  }
  state_->options.push_back(std::move(option));
}

void ConfigParser::add_preset(std::string name, Settings settings, std::string help) {
  for (const auto& [key, text] : settings) {
    Option& option = state_->at(key);
    const auto fault = option.binding->assign(text_value(option, text), option.spec, false);
    TORCH_CHECK(!fault, "preset ", name, ", ", key, ": ", fault->problem, ", got ", text);
  }
  state_->presets.push_back({std::move(name), std::move(settings), std::move(help)});
}

void ConfigParser::refuse(std::string_view name, std::string reason) { state_->at(name).refusal = std::move(reason); }

absl::StatusOr<Request> ConfigParser::parse(int argc, const char* const* argv) {
  return parse(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
}

absl::StatusOr<Request> ConfigParser::parse(const std::vector<std::string>& arguments) {
  State& state = *state_;
  TORCH_CHECK(!std::exchange(state.parsed, true), "parse() may be called only once");
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string flag = arguments[i].substr(0, arguments[i].find('='));
    if (flag == "--version") return Request::kVersion;
    if (flag == "--help" || flag == "-h" || flag == "--completion") return parse_question(arguments, i);
  }
  TRAINKIT_ASSIGN_OR_RETURN(const auto flags, CommandLine(state, arguments).read());
  const auto apply = [&]() -> absl::Status {
    for (const Given& flag : flags) TRAINKIT_RETURN_IF_ERROR(store(flag, ""));
    if (!state.config_file.empty()) TRAINKIT_RETURN_IF_ERROR(read_file(state, state.config_file, Layer::kFile));
    return apply_preset();
  };
  TRAINKIT_RETURN_IF_ERROR(apply());
  std::string run_file;
  if (state.find_run_file) {
    TRAINKIT_ASSIGN_OR_RETURN(run_file, state.find_run_file());
  }
  if (!run_file.empty()) {
    // The run's values are stored over the others, so that each can be compared, and then the others again.
    TRAINKIT_RETURN_IF_ERROR(apply_run_file(run_file));
    TRAINKIT_RETURN_IF_ERROR(apply());
    TRAINKIT_RETURN_IF_ERROR(check_fixed());
  }
  TRAINKIT_RETURN_IF_ERROR(check_complete());
  return state.print_config ? Request::kPrintConfig : Request::kRun;
}

/// Reads the topic of --help, or the shell of --completion, at `at`.
absl::StatusOr<Request> ConfigParser::parse_question(const std::vector<std::string>& arguments, size_t at) {
  State& state = *state_;
  const size_t equals = arguments[at].find('=');
  const bool has_word = at + 1 < arguments.size() && !is_flag(arguments[at + 1]);
  const std::string word = equals != std::string::npos ? arguments[at].substr(equals + 1)
                           : has_word                  ? arguments[at + 1]
                                                       : "";
  if (arguments[at].starts_with("--completion")) {
    const Option& option = state.at("completion");
    if (auto fault = option.binding->assign({.text = word}, option.spec, true)) {
      return flag_error("value", "--completion", std::move(*fault));
    }
    return Request::kCompletion;
  }
  const std::string topic = detail::topic_name(std::string_view(word).substr(word.starts_with("--") ? 2 : 0));
  std::vector<std::string> topics = {"all"};
  for (const std::string& group : state.groups()) topics.push_back(detail::topic_name(group));
  const bool known = topic.empty() || topic == "all" || !state.group_of_topic(topic).empty() || state.find(topic);
  if (!known) {
    std::vector<std::string> names = state.names();
    names.insert(names.end(), topics.begin(), topics.end());
    const std::string nearest = nearest_name(topic, names);
    return flag_error("value", "--help",
                      {.problem = "no such heading or flag",
                       .got = word,
                       .expected = detail::join(topics, ", ", ", ") + " or the name of a flag",
                       .hint = nearest.empty() ? "" : "did you mean --help " + nearest + "?"});
  }
  state.help_topic = topic;
  return Request::kHelp;
}

void ConfigParser::set_run_file(std::function<absl::StatusOr<std::string>()> find,
                                const std::vector<std::string>& not_kept) {
  state_->find_run_file = std::move(find);
  for (const std::string& name : not_kept) state_->at(name).is_not_kept = true;
}

void ConfigParser::fix(const std::vector<std::string>& names) {
  for (const std::string& name : names) state_->at(name).is_fixed = true;
}

absl::Status ConfigParser::apply_run_file(const std::string& path) {
  for (const auto& option : state_->options) option->layer = Layer::kDefault;
  state_->at("preset").is_not_kept = true;  // the file has the values that it gave
  return read_file(*state_, path, Layer::kRun);
}

absl::Status ConfigParser::check_fixed() const {
  for (const auto& option : state_->options) {
    if (!option->is_fixed || !option->is_changed()) continue;
    return blame(*option, "fixed",
                 {.problem = "cannot change when a run is continued",
                  .expected = option->run_yaml + " (" + option->run_source + ")",
                  .hint = "omit it, or start a new run in another --output_dir"});
  }
  return absl::OkStatus();
}

bool ConfigParser::is_changed(std::string_view name) const { return state_->at(name).is_changed(); }

std::vector<std::string> ConfigParser::changes() const {
  std::vector<std::string> list;
  for (const auto& option : state_->options) {
    if (!option->is_changed()) continue;
    list.push_back(option->name + ": " + option->run_yaml + " -> " + option->binding->to_yaml(option->spec) + " (" +
                   option->source + ")");
  }
  return list;
}

absl::Status ConfigParser::apply_preset() {
  if (state_->preset.empty()) return absl::OkStatus();
  std::vector<std::string> names;
  for (const detail::Preset& preset : state_->presets) {
    names.push_back(preset.name);
    if (preset.name != state_->preset) continue;
    for (const auto& [key, text] : preset.settings) {
      Option& option = state_->at(key);
      TRAINKIT_RETURN_IF_ERROR(store({&option, text_value(option, text), Layer::kPreset, "preset " + preset.name}, ""));
    }
    return absl::OkStatus();
  }
  const std::string nearest = nearest_name(state_->preset, names);
  return invalid("preset", "no such preset", detail::join(names, ", ", " or "),
                 nearest.empty() ? "" : "did you mean " + nearest + "?");
}

absl::Status ConfigParser::check_complete() const {
  for (const auto& option : state_->options) {
    if (option->spec.required && option->layer == Layer::kDefault) {
      const bool has_file = !state_->config_file.empty();
      return error(has_file ? ExitCode::kConfig : ExitCode::kUsage, has_file ? "config.missing" : "cli.missing",
                   has_file ? state_->config_file : "", has_file ? option->name : "--" + option->name,
                   {.problem = "required option is not given", .expected = option->binding->metavar(option->spec)});
    }
    if (!option->refusal.empty() && option->binding->to_yaml(option->spec) != option->default_yaml) {
      return blame(*option, "unsupported", {.problem = "not supported", .hint = option->refusal});
    }
  }
  return absl::OkStatus();
}

void ConfigParser::set_defaults(const Settings& settings, std::string_view reason) {
  for (const auto& [key, text] : settings) {
    Option& option = state_->at(key);
    const bool commit = option.layer == Layer::kDefault;
    const auto fault = option.binding->assign(text_value(option, text), option.spec, commit);
    TORCH_CHECK(!fault, "default of ", key, ": ", fault->problem, ", got ", text);
    if (commit) option.source = "default (" + std::string(reason) + ")";
  }
}

bool ConfigParser::is_default(std::string_view name) const { return state_->at(name).layer == Layer::kDefault; }

bool ConfigParser::is_given(std::string_view name) const { return state_->at(name).layer > Layer::kRun; }

std::string ConfigParser::source(std::string_view name) const { return state_->at(name).source; }

absl::Status ConfigParser::blame(const Option& option, const char* id, Fault fault) const {
  if (fault.got.empty()) fault.got = option.binding->to_text();
  if (option.layer == Layer::kFile || option.layer == Layer::kRun) {
    return error(ExitCode::kConfig, std::string("config.") + id, option.source, option.name, std::move(fault));
  }
  const bool typed = option.layer == Layer::kFlag;
  return flag_error(id, typed ? option.source : "--" + option.name, std::move(fault));
}

absl::Status ConfigParser::invalid(std::string_view name, std::string problem, std::string expected,
                                   std::string hint) const {
  return blame(state_->at(name), "value",
               {.problem = std::move(problem), .expected = std::move(expected), .hint = std::move(hint)});
}

Option* ConfigParser::State::find(std::string_view name) const {
  const auto found = by_name.find(normalized(name));
  return found == by_name.end() ? nullptr : found->second;
}

Option& ConfigParser::State::at(std::string_view name) const {
  Option* option = find(name);
  TORCH_CHECK(option != nullptr, "there is no option '", std::string(name), "'");
  return *option;
}

std::vector<std::string> ConfigParser::State::names() const {
  std::vector<std::string> all;
  for (const auto& [name, option] : by_name) all.push_back(name);
  return all;
}

}  // namespace trainkit
