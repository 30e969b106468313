#pragma once

#include <string>
#include <string_view>

#include "trainkit/core/error.h"

namespace trainkit::detail {

/// A name as loggers write it: escaped, and whole however long, because names that begin alike are still two.
inline std::string escape_name(std::string_view name) { return escape_text(name, std::string::npos); }

}  // namespace trainkit::detail
