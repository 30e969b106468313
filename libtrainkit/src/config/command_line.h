#pragma once
/// The command line as flags with values that are not yet converted.

#include <absl/status/statusor.h>

#include <string>
#include <string_view>
#include <vector>

#include "config/parser_state.h"

namespace trainkit::detail {

/// A flag of the command line, or a key of the file.
struct Given {
  Option* option = nullptr;
  RawValue value = {};
  Layer layer = Layer::kFlag;
  /// Source of the value: the flag as typed, or file:line:column.
  std::string source = {};
};

/// Splits the command line into flags. Checks names and the number of values, not types.
absl::StatusOr<std::vector<Given>> read_command_line(const ConfigParser::State& state,
                                                     const std::vector<std::string>& arguments);

/// Replaces '-' by '_'.
std::string normalized(std::string_view name);

/// Whether `argument` is --name or -h. "-1" and "-" are values.
bool is_flag(std::string_view argument);

/// Converts a text from a preset or a default to a raw value of `option`.
RawValue text_value(const Option& option, const std::string& text);

/// Returns an error about `field`, at `where` in the file, or on the command line if `where` is empty.
absl::Status error(ExitCode code, std::string id, std::string where, std::string field, Fault fault);
/// The same about a flag, with exit code kUsage and an id that begins with "cli.".
absl::Status flag_error(std::string id, std::string_view flag, Fault fault);

/// Returns a hint: the nearest of `names`, after `prefix`.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& names, const char* prefix);

}  // namespace trainkit::detail
