#pragma once

namespace trainkit::test {

/// Whether AddressSanitizer or ThreadSanitizer is enabled: they reserve terabytes of addresses, and their own memory
/// grows with the process.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace trainkit::test
