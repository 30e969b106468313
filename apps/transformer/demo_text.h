#pragma once
/// Generated text for machines without licence texts: sentences of a small grammar.

#include <cstdint>
#include <string>

namespace trainkit::transformer {

/// Generates about `bytes` bytes of ASCII English-like prose in paragraphs. Depends only on the arguments.
std::string demo_text(int64_t bytes = 300'000, uint64_t seed = 0);

}  // namespace trainkit::transformer
