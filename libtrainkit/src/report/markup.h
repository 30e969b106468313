#pragma once
/// Escapes text for SVG and HTML.

#include <absl/strings/str_replace.h>

#include <string>
#include <string_view>

namespace trainkit::detail {

/// Replaces the characters of markup by entities, for content and for attributes in double quotes.
inline std::string escape_markup(std::string_view text) {
  return absl::StrReplaceAll({text.data(), text.size()},
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

}  // namespace trainkit::detail
