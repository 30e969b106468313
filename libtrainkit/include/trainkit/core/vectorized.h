#pragma once
/// Marks a function for compilation to several vector widths. The loader chooses the widest one that the processor
/// supports. (Sanitizers do not support this choice, so it is disabled there.)

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define TRAINKIT_VECTORIZED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TRAINKIT_VECTORIZED
#endif

/// Marks helpers of such functions; they are inlined into each version.
#define TRAINKIT_INLINE inline __attribute__((always_inline))
