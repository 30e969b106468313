#pragma once
/// A fast digest that detects corruption.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace trainkit {

/// Computes XXH3 with 128 bits (https://xxhash.com) incrementally. Detects flipped, lost and swapped bytes at memory
/// bandwidth. Not collision-resistant: it does not protect against files that are made on purpose to have one digest.
class Digest {
 public:
  Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;
  ~Digest();

  void update(const void* data, size_t size);
  /// Returns 32 hexadecimal digits, the canonical (big-endian) form that `xxhsum -H2` prints. update() may follow.
  std::string hex() const;

  /// Returns the digest of `bytes`.
  static std::string of(std::string_view bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainkit
