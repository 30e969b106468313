#include "trainkit/core/fs.h"

#define XXH_INLINE_ALL  // header-only: neither this library nor its users link libxxhash
#include <xxhash.h>

#include <algorithm>

#include "trainkit/core/status.h"

namespace trainkit {

struct Digest::State {
  XXH3_state_t xxh3;
};

Digest::Digest() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh3); }
Digest::Digest(Digest&&) noexcept = default;
Digest& Digest::operator=(Digest&&) noexcept = default;
Digest::~Digest() = default;

void Digest::update(const void* data, size_t size) { XXH3_128bits_update(&state_->xxh3, data, size); }

std::string Digest::hex() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_->xxh3));
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string Digest::of(std::string_view bytes) {
  Digest digest;
  digest.update(bytes.data(), bytes.size());
  return digest.hex();
}

absl::StatusOr<std::string> digest_of(const ReadableFile& file) {
  constexpr int64_t kPiece = 1 << 20;
  std::string piece(static_cast<size_t>(std::min(kPiece, file.size_bytes())), '\0');
  Digest digest;
  for (int64_t at = 0; at < file.size_bytes(); at += kPiece) {
    const auto size = static_cast<size_t>(std::min(kPiece, file.size_bytes() - at));
    TRAINKIT_RETURN_IF_ERROR(file.read_at(at, piece.data(), size));
    digest.update(piece.data(), size);
  }
  return digest.hex();
}

}  // namespace trainkit
