#include "trainkit/core/format.h"

#include <absl/strings/ascii.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "core/base/mask_secrets.h"
#include "trainkit/core/error.h"

namespace trainkit {

std::string format_number(double value) {
  const double size = std::abs(value);
  if (!std::isfinite(value)) return fmt::format("{}", value);
  if (value == 0) return "0";
  return size >= 1e-3 && size < 99999.5 ? fmt::format("{:#.5g}", value) : fmt::format("{:.2e}", value);
}

std::string format_count(double value) {
  static constexpr std::array<const char*, 5> kUnits = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < kUnits.size()) value /= 1000, ++unit;
  const int decimals = unit == 0                 ? (std::abs(value) < 9.95 && value != std::floor(value) ? 1 : 0)
                       : std::abs(value) < 9.995 ? 2
                       : std::abs(value) < 99.95 ? 1
                                                 : 0;
  return fmt::format("{:.{}f}{}", value, decimals, kUnits[unit]);
}

std::string format_size(int64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 1023.5 && unit + 1 < kUnits.size()) value /= 1024, ++unit;
  if (unit == 0) return fmt::format("{} B", bytes);
  const double size = std::abs(value);
  return fmt::format("{:.{}f} {}", value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0, kUnits[unit]);
}

std::optional<int64_t> parse_size(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  std::string unit(end, text.data() + text.size());
  if (unit.starts_with(' ')) unit.erase(0, 1);
  absl::AsciiStrToLower(&unit);
  static constexpr std::string_view kPrefixes = "kmgt";
  double factor = 1;
  if (!unit.empty() && unit != "b") {
    const size_t prefix = kPrefixes.find(unit[0]);
    const std::string_view rest = std::string_view(unit).substr(1);
    if (prefix == std::string_view::npos || (!rest.empty() && rest != "ib" && rest != "b")) return std::nullopt;
    factor = std::pow(rest == "b" ? 1000.0 : 1024.0, static_cast<double>(prefix + 1));
  }
  const double bytes = number * factor;
  return bytes <= 0x1p62 ? std::optional(static_cast<int64_t>(bytes)) : std::nullopt;
}

std::string format_duration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  const int64_t s = std::llround(seconds);
  const int64_t days = s / 86400, hours = s / 3600 % 24, minutes = s / 60 % 60;
  if (days > 0) return fmt::format("{}d {:02}:{:02}:{:02}", days, hours, minutes, s % 60);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, s % 60);
  return fmt::format("{}:{:02}", minutes, s % 60);
}

std::string format_text(std::string_view text) {
  const std::string masked = detail::mask_secrets(text);
  std::string out;
  for (size_t begin = 0; begin < masked.size();) {
    const size_t end = std::min(masked.find_first_of("\n\t", begin), masked.size());
    out += escape_text(std::string_view(masked).substr(begin, end - begin), std::string::npos - 8);
    if (end < masked.size()) out += masked[end];
    begin = end + 1;
  }
  return out;
}

bool natural_less(std::string_view a, std::string_view b) {
  constexpr std::string_view kDigits = "0123456789";
  while (!a.empty() && !b.empty()) {
    const size_t digits_a = std::min(a.find_first_not_of(kDigits), a.size());
    const size_t digits_b = std::min(b.find_first_not_of(kDigits), b.size());
    if (digits_a > 0 && digits_b > 0) {
      std::string_view number_a = a.substr(0, digits_a), number_b = b.substr(0, digits_b);
      number_a.remove_prefix(std::min(number_a.find_first_not_of('0'), number_a.size()));
      number_b.remove_prefix(std::min(number_b.find_first_not_of('0'), number_b.size()));
      if (number_a.size() != number_b.size()) return number_a.size() < number_b.size();
      if (number_a != number_b) return number_a < number_b;
      a.remove_prefix(digits_a);
      b.remove_prefix(digits_b);
    } else {
      if (a[0] != b[0]) return a[0] < b[0];
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() < b.size();
}

}  // namespace trainkit
