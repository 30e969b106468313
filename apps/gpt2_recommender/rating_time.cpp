// Parses times exactly, as numbers and as ISO 8601 dates.
#include <absl/strings/ascii.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <limits>

#include "gpt2_recommender/entity_table.h"

namespace trainkit::rec::detail {
namespace {

constexpr int kDecimals = 18;

/// Takes digits from the front of `text`.
std::string_view take_digits(std::string_view& text) {
  size_t count = 0;
  while (count < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[count]))) ++count;
  const std::string_view digits = text.substr(0, count);
  text.remove_prefix(count);
  return digits;
}

bool take(std::string_view& text, std::string_view any_of) {
  if (text.empty() || any_of.find(text.front()) == any_of.npos) return false;
  text.remove_prefix(1);
  return true;
}

/// Takes exactly `count` digits.
bool take_number(std::string_view& text, size_t count, int& number) {
  if (text.size() < count) return false;
  std::string_view digits = text.substr(0, count);
  text.remove_prefix(count);
  return take_digits(digits).size() == count &&
         std::from_chars(digits.data() - count, digits.data(), number).ec == std::errc();
}

/// Returns the digits [point, point + kDecimals) as a number; digits outside of `digits` are 0. nullopt if a later one
/// is not 0.
std::optional<int64_t> fraction_of(std::string_view digits, int64_t point) {
  int64_t fraction = 0;
  for (int64_t at = point; at < point + kDecimals; ++at) {
    const bool is_digit = at >= 0 && at < std::ssize(digits);
    fraction = fraction * 10 + (is_digit ? digits[static_cast<size_t>(at)] - '0' : 0);
  }
  const auto rest = static_cast<size_t>(std::clamp<int64_t>(point + kDecimals, 0, std::ssize(digits)));
  return digits.find_first_not_of('0', rest) == digits.npos ? std::optional(fraction) : std::nullopt;
}

/// Returns -time.
EventTime negated(EventTime time) {
  constexpr int64_t kOne = 1'000'000'000'000'000'000;
  return time.fraction == 0 ? EventTime(-time.whole) : EventTime(-time.whole - 1, kOne - time.fraction);
}

/// Parses [+-]digits[.digits][e[+-]digits].
std::optional<EventTime> parse_decimal(std::string_view text) {
  std::string_view rest = text;
  if (take_digits(rest); rest.empty() && !text.empty() && text.size() <= kDecimals) {
    int64_t whole = 0;  // nearly all times
    for (const char digit : text) whole = 10 * whole + (digit - '0');
    return EventTime(whole);
  }
  const bool is_negative = text.starts_with('-');
  take(text, "+-");
  std::string digits(take_digits(text));
  int64_t point = std::ssize(digits);
  if (take(text, ".")) digits += take_digits(text);
  if (digits.empty()) return std::nullopt;
  if (take(text, "eE")) {
    const bool is_small = text.starts_with('-');
    take(text, "+-");
    const std::string_view number = take_digits(text);
    int exponent = 0;
    if (number.empty() || number.size() > 6) return std::nullopt;
    std::from_chars(number.data(), number.data() + number.size(), exponent);
    point += is_small ? -exponent : exponent;
  }
  if (!text.empty()) return std::nullopt;
  const size_t zeros = std::min(digits.find_first_not_of('0'), digits.size());
  digits.erase(0, zeros);
  if (digits.empty()) return EventTime();
  point -= static_cast<int64_t>(zeros);
  if (point > std::numeric_limits<int64_t>::digits10 + 1) return std::nullopt;
  std::string whole = digits.substr(0, static_cast<size_t>(std::max<int64_t>(point, 0)));
  whole.resize(static_cast<size_t>(std::max<int64_t>(point, 0)), '0');
  EventTime time;
  if (!whole.empty() && !parse_number(whole, time.whole)) return std::nullopt;
  const auto fraction = fraction_of(digits, point);
  if (!fraction) return std::nullopt;
  time.fraction = *fraction;
  return is_negative ? negated(time) : time;
}

/// Parses a time zone: Z, UTC, +hh, +hhmm or +hh:mm. Empty: none.
bool parse_zone(std::string_view text, bool& has_zone, int64_t& offset_seconds) {
  offset_seconds = 0;
  has_zone = !text.empty();
  if (text.empty() || text == "Z" || text == "z" || text == "UTC" || text == "GMT") return true;
  const bool is_negative = text.starts_with('-');
  int hours = 0, minutes = 0;
  if (!take(text, "+-") || !take_number(text, 2, hours)) return false;
  if (!text.empty()) {
    take(text, ":");
    if (!take_number(text, 2, minutes)) return false;
  }
  offset_seconds = (is_negative ? -60 : 60) * int64_t{60 * hours + minutes};
  return text.empty() && hours < 24 && minutes < 60;
}

/// Parses yyyy-mm-dd, and a time of day after "T" or blanks: hh:mm[:ss[.digits]] and a time zone.
std::optional<ParsedTime> parse_date(std::string_view text) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
  const bool starts = take_number(text, 4, year) && take(text, "-/") && take_number(text, 2, month) &&
                      take(text, "-/") && take_number(text, 2, day);
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!starts || !date.ok()) return std::nullopt;
  ParsedTime parsed{.form = TimeForm::kDate};
  bool has_zone = false;
  int64_t offset = 0;
  if (!text.empty()) {
    if (!take(text, "Tt ") || !take_number(text, 2, hour) || !take(text, ":") || !take_number(text, 2, minute)) {
      return std::nullopt;
    }
    if (take(text, ":")) {
      if (!take_number(text, 2, second)) return std::nullopt;
      if (take(text, ".,")) {
        const auto fraction = fraction_of(take_digits(text), 0);
        if (!fraction) return std::nullopt;
        parsed.time.fraction = *fraction;
      }
    }
    const bool is_time = hour < 24 && minute < 60 && second <= 60;  // 60: a leap second
    if (!is_time || !parse_zone(trimmed(text), has_zone, offset)) return std::nullopt;
  }
  const int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  parsed.time.whole = days * 86'400 + int64_t{hour} * 3'600 + int64_t{minute} * 60 + second - offset;
  if (has_zone) parsed.form = TimeForm::kZonedDate;
  return parsed;
}

}  // namespace

std::optional<ParsedTime> parse_time(std::string_view text) {
  if (const auto number = parse_decimal(text)) {
    // Seconds reach 10^11 in the year 5138; milliseconds passed it in 1973. The same holds a thousand and a million
    // times finer.
    const double size = std::abs(static_cast<double>(number->whole));
    const TimeForm form = size < 1e11   ? TimeForm::kSeconds
                          : size < 1e14 ? TimeForm::kMilliseconds
                          : size < 1e17 ? TimeForm::kMicroseconds
                                        : TimeForm::kNanoseconds;
    return ParsedTime{*number, form, text};
  }
  auto date = parse_date(text);
  if (date) date->text = text;
  return date;
}

}  // namespace trainkit::rec::detail
