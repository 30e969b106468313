#pragma once
/// Formats numbers and rates for people. The text does not depend on the locale.

#include <string>

namespace trainkit::detail {

/// Formats a measured value with five digits: "2.1034", "0.87310", "1234.6". Uses "1.20e-05" below 0.001 and from
/// 100,000 on. Also "0", "nan" and "inf".
std::string format_number(double value);

/// Formats a user's setting with up to three digits: "0.001", "9.55e-05".
std::string format_setting(double value);

/// Formats a count or a rate: "812", "12.3k", "4.56M", "1.20G".
std::string format_count(double value);

}  // namespace trainkit::detail
