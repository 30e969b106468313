#include "trainkit/config/config.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "config/command_line.h"
#include "config/parser_state.h"
#include "core/files/working_folder.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

using detail::did_you_mean;
using detail::error;
using detail::Fault;
using detail::FileEntry;
using detail::flag_error;
using detail::Given;
using detail::is_flag;
using detail::Layer;
using detail::normalized;
using detail::Option;
using detail::RawValue;
using detail::text_value;

/// Makes a path from a file absolute, starting at the file's folder. An output path may not contain "..".
std::optional<Fault> anchor_path(const OptionSpec& spec, const std::filesystem::path& folder, RawValue& value) {
  for (RawValue& item : value.items) {
    if (auto fault = anchor_path(spec, folder, item)) return fault;
  }
  const auto& words = spec.path_words;
  if (value.kind != RawValue::Kind::kString || value.text.empty() ||
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
    const bool section = given.value.kind == RawValue::Kind::kMap;
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

/// Stores the values of --preset.
absl::Status apply_preset(const ConfigParser& parser, const ConfigParser::State& state) {
  if (state.preset.empty()) return absl::OkStatus();
  std::vector<std::string> names;
  for (const detail::Preset& preset : state.presets) {
    names.push_back(preset.name);
    if (preset.name != state.preset) continue;
    for (const auto& [key, text] : preset.settings) {
      Option& option = state.at(key);
      TRAINKIT_RETURN_IF_ERROR(store({&option, text_value(option, text), Layer::kPreset, "preset " + preset.name}, ""));
    }
    return absl::OkStatus();
  }
  const std::string nearest = nearest_name(state.preset, names);
  return parser.invalid("preset", "no such preset", detail::join(names, ", ", " or "),
                        nearest.empty() ? "" : "did you mean " + nearest + "?");
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
const std::string& ConfigParser::config_file() const { return state_->config_file; }

void ConfigParser::add_option(std::string name, std::shared_ptr<detail::Binding> binding, OptionSpec spec) {
  TORCH_CHECK(!state_->parsed, "add ", name, " before parse()");
  auto option = std::make_unique<Option>(Option{.name = name, .spec = std::move(spec), .binding = std::move(binding)});
  const std::string problem = option->binding->default_problem();
  TORCH_CHECK_VALUE(problem.empty(), "option ", name, ": the default ", problem);
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
  TRAINKIT_ASSIGN_OR_RETURN(const auto flags, detail::read_command_line(state, arguments));
  const auto apply = [&]() -> absl::Status {
    for (const Given& flag : flags) TRAINKIT_RETURN_IF_ERROR(store(flag, ""));
    if (!state.config_file.empty()) TRAINKIT_RETURN_IF_ERROR(read_file(state, state.config_file, Layer::kFile));
    return apply_preset(*this, state);
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
  TRAINKIT_RETURN_IF_ERROR(check_paths());
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

absl::Status ConfigParser::check_paths() const {
  if (!detail::is_working_folder_lost()) return absl::OkStatus();
  for (const auto& option : state_->options) {
    const bool is_flag = option->layer == Layer::kFlag && option->spec.path != PathKind::kNone;
    const std::string path = is_flag ? option->binding->to_text() : "";
    const auto& words = option->spec.path_words;
    if (path.empty() || option->binding->is_list() || path.starts_with('/') ||
        std::find(words.begin(), words.end(), path) != words.end())
      continue;
    return blame(*option, "value", {.problem = "a relative path", .hint = detail::kLostFolderHint});
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

void ConfigParser::add_remark(std::string_view name, std::string_view remark) const {
  Option& option = state_->at(name);
  const std::string text = ", " + std::string(remark);
  if (!option.source.ends_with(text)) option.source += text;
}

void ConfigParser::set_help(std::string_view name, std::string help) { state_->at(name).spec.help = std::move(help); }

void ConfigParser::set_modes(std::string_view name, std::vector<std::string> modes) {
  state_->at(name).spec.modes = std::move(modes);
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
