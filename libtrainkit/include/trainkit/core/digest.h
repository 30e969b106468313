#pragma once
/// A fast digest that sees corruption.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace trainkit {

/// XXH3 with 128 bits (https://xxhash.com), fed piece by piece. It sees flipped, lost and swapped bytes at memory
/// speed; it does not stop a person who makes two files with one digest on purpose.
class Digest {
 public:
  Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;
  ~Digest();

  void update(const void* data, size_t size);
  /// 32 hexadecimal digits, the canonical (big-endian) form that `xxhsum -H2` prints. More may be added afterwards.
  std::string hex() const;

  /// The digest of `bytes` alone.
  static std::string of(std::string_view bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainkit
