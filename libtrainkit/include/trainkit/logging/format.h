#pragma once
/// Numbers, rates, sizes and times as people read them. The same text in every locale.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trainkit {

/// A measured value in five digits: "2.1034", "0.87310", "1234.6"; "1.20e-05" below a thousandth and from 100,000 on;
/// "0", "nan", "inf".
std::string format_number(double value);

/// A value that was set by hand, in up to three digits: "0.001", "9.55e-05".
std::string format_setting(double value);

/// A count or a rate: "812", "12.3k", "4.56M", "1.20G".
std::string format_count(double value);

/// "512 B", "1.50 KiB", "23.6 GiB".
std::string format_size(int64_t bytes);

/// The inverse for people: "24GiB", "24 GB", "1.5g", "512". Units of 1024 are KiB, MiB, GiB, TiB and the letters alone
/// (k, M, G, T), units of 1000 are kB, MB, GB, TB; either case. nullopt for anything else, and beyond 2^62 bytes.
std::optional<int64_t> parse_size(std::string_view text);

/// "0:07", "12:34", "1:02:03", "2d 03:04:05"; "?" for what is negative or not finite.
std::string format_duration(double seconds);

/// Lines of text made safe to show: control bytes, invalid UTF-8 and text-direction marks are escaped (line ends and
/// tabs are kept), what looks like a secret is masked (see mask_secrets in core/error.h).
std::string format_text(std::string_view text);

}  // namespace trainkit
