#pragma once
/// Formats numbers, rates, sizes and times for people. The text does not depend on the locale.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trainkit {

/// Formats a measured value with five digits: "2.1034", "0.87310", "1234.6". Uses "1.20e-05" below 0.001 and from
/// 100,000 on. Also "0", "nan" and "inf".
std::string format_number(double value);

/// Formats a count or a rate: "812", "12.3k", "4.56M", "1.20G".
std::string format_count(double value);

/// Formats a size: "512 B", "1.50 KiB", "23.6 GiB".
std::string format_size(int64_t bytes);

/// Parses a size written by a person: "24GiB", "24 GB", "1.5g", "512". Case is ignored.
///
/// Units of 1024: KiB, MiB, GiB, TiB and the single letters k, M, G, T. Units of 1000: kB, MB, GB, TB. Returns nullopt
/// for any other text and for more than 2^62 bytes.
std::optional<int64_t> parse_size(std::string_view text);

/// Formats a duration: "0:07", "12:34", "1:02:03", "2d 03:04:05". Returns "?" for a negative or non-finite value.
std::string format_duration(double seconds);

/// Orders names as people do: numbers in them by their value, "ndcg@5" before "ndcg@10". For std::sort.
bool natural_less(std::string_view a, std::string_view b);

/// Makes text safe to print. Escapes control bytes, invalid UTF-8 and text-direction marks, but keeps line ends and
/// tabs. Masks secrets: passwords in URLs, and the values of `...key=`, `...token=`, `...secret=` and `...password=`.
std::string format_text(std::string_view text);

}  // namespace trainkit
