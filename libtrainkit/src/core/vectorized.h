#pragma once
/// Marks a function whose plain loops the compiler turns into vector code, once for each width of vectors; the widest
/// that the processor has is chosen when the program is loaded. (Sanitizers do not support that choice.)

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define TRAINKIT_VECTORIZED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TRAINKIT_VECTORIZED
#endif

/// Marks the parts of such functions: they become part of each version.
#define TRAINKIT_INLINE inline __attribute__((always_inline))
