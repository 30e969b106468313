#include "distributed/group/address.h"

#include <arpa/inet.h>

namespace trainkit::detail {

bool is_ipv6(const std::string& text) {
  in6_addr ignored{};
  return inet_pton(AF_INET6, text.substr(0, text.find('%')).c_str(), &ignored) == 1;
}

std::string without_brackets(const std::string& address) {
  const bool has_both = address.size() > 2 && address.starts_with('[') && address.ends_with(']');
  const std::string inner = has_both ? address.substr(1, address.size() - 2) : "";
  return is_ipv6(inner) ? inner : address;
}

}  // namespace trainkit::detail
