#pragma once

#include <string>
#include <string_view>

#include "trainkit/core/error.h"

namespace trainkit::detail {

/// Escapes a name for loggers without shortening it, because long names may differ only at the end.
inline std::string escape_name(std::string_view name) { return escape_text(name, std::string::npos); }

}  // namespace trainkit::detail
