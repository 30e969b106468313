#pragma once
/// Masks secrets in text that is printed or logged.

#include <string>
#include <string_view>

namespace trainkit::detail {

/// Replaces secrets in `text` by ***: passwords in URLs (scheme://user:password@), and the value after `...key=`,
/// `...token=`, `...secret=` or `...password=`. For api_key, secret and password, a colon may replace `=`. Any case.
std::string mask_secrets(std::string_view text);

}  // namespace trainkit::detail
