#pragma once
/// A text for machines that have none: sentences of a small grammar.

#include <cstdint>
#include <string>

namespace trainkit::transformer {

/// About `bytes` bytes of ASCII English-like prose, in paragraphs; a function of the seed alone.
std::string demo_text(int64_t bytes = 300'000, uint64_t seed = 0);

}  // namespace trainkit::transformer
