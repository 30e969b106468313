#pragma once
/// Recognises addresses of machines.

#include <string>

namespace trainkit::detail {

bool is_ipv6(const std::string& text);

/// Returns "::1" for "[::1]", as IPv6 addresses are written before a port and in URLs. Other text stays.
std::string without_brackets(const std::string& address);

}  // namespace trainkit::detail
