#include "config/read_number.h"

#include <algorithm>
#include <charconv>
#include <concepts>
#include <string>
#include <utility>

namespace trainkit::detail {
namespace {

constexpr size_t kLongestNumber = 400;

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// Whether `text` is digits without a leading zero, which YAML 1.1 would read as octal.
bool is_integer_part(std::string_view text) { return all_digits(text) && (text.size() == 1 || text[0] != '0'); }

bool is_decimal(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  const size_t exponent = text.find_first_of("eE");
  if (exponent != std::string_view::npos) {
    std::string_view digits = text.substr(exponent + 1);
    if (digits.starts_with('-') || digits.starts_with('+')) digits.remove_prefix(1);
    if (!all_digits(digits)) return false;
    text = text.substr(0, exponent);
  }
  const size_t point = text.find('.');
  if (point == std::string_view::npos) return is_integer_part(text);
  const std::string_view whole = text.substr(0, point), fraction = text.substr(point + 1);
  if (whole.empty() && fraction.empty()) return false;
  return (whole.empty() || is_integer_part(whole)) && (fraction.empty() || all_digits(fraction));
}

template <std::integral T>
Reading read_integer(std::string_view text, T& value) {
  const std::string_view digits = text.starts_with('-') ? text.substr(1) : text;
  if (!is_integer_part(digits)) return Reading::kSyntax;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  // from_chars stops before a minus sign if the type is unsigned.
  return result.ec == std::errc() && result.ptr == text.data() + text.size() ? Reading::kOk : Reading::kRange;
}

}  // namespace

Reading read_number(std::string_view text, int& value) { return read_integer(text, value); }
Reading read_number(std::string_view text, int64_t& value) { return read_integer(text, value); }
Reading read_number(std::string_view text, uint64_t& value) { return read_integer(text, value); }

Reading read_number(std::string_view text, double& value) {
  std::string word;
  for (const char c : text.substr(0, 12)) word += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  word.erase(0, word.find_first_not_of("+-."));
  if (word == "nan" || word == "inf" || word == "infinity") return Reading::kNotFinite;
  if (text.size() > kLongestNumber || !is_decimal(text)) return Reading::kSyntax;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() ? Reading::kOk : Reading::kRange;
}

Reading read_seconds(std::string_view text, double& seconds) {
  const Reading plain = read_number(text, seconds);
  if (plain != Reading::kSyntax || text.size() > kLongestNumber) return plain;
  static constexpr std::pair<std::string_view, double> kUnits[] = {
      {"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
  for (seconds = 0; !text.empty();) {
    const size_t length = std::min(text.find_first_not_of("0123456789."), text.size());
    double number = 0;
    if (const Reading part = read_number(text.substr(0, length), number); part != Reading::kOk) return part;
    text.remove_prefix(length);
    const size_t word = std::min(text.find_first_of("0123456789."), text.size());
    const auto unit = std::find_if(std::begin(kUnits), std::end(kUnits),
                                   [&](const auto& candidate) { return candidate.first == text.substr(0, word); });
    if (unit == std::end(kUnits)) return Reading::kSyntax;
    seconds += number * unit->second;
    text.remove_prefix(word);
  }
  return Reading::kOk;
}

bool looks_like_number(std::string_view digits) {
  if (digits.starts_with('+') || digits.starts_with('-')) digits.remove_prefix(1);
  if (digits.empty()) return false;
  if (digits == ".nan" || digits == ".NaN" || digits == ".NAN") return true;
  if (digits == ".inf" || digits == ".Inf" || digits == ".INF") return true;
  if (digits.starts_with("0x") || digits.starts_with("0o")) {
    return digits.size() > 2 && digits.find_first_not_of("0123456789abcdefABCDEF", 2) == std::string_view::npos;
  }
  // Accept leading zeros here, so that 010 is reported as a wrong number instead of a word.
  while (digits.size() > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9') digits.remove_prefix(1);
  return is_decimal(digits) && digits[0] != '-';
}

}  // namespace trainkit::detail
