#pragma once
// Markdown tables as aligned columns, for terminals.

#include <string>
#include <string_view>

namespace trainkit::detail {

/// Replaces each Markdown table of `text` by columns aligned with spaces. A column of numbers is right-aligned, except
/// the first one. Other lines stay as they are.
std::string align_tables(std::string_view text);

}  // namespace trainkit::detail
