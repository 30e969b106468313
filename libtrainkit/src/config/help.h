#pragma once
/// Formats the help of a program that only has commands.

#include <string>

#include "trainkit/config/config.h"

namespace trainkit::detail {

/// Returns usage, description, commands, remark and examples of `program`, wrapped at the terminal's width.
std::string command_help(const ProgramInfo& program);

}  // namespace trainkit::detail
