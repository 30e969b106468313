#pragma once

namespace trainkit::test {

/// Whether this is built with AddressSanitizer or ThreadSanitizer: they reserve terabytes of addresses, and the memory
/// of the process is theirs too, which grows.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace trainkit::test
