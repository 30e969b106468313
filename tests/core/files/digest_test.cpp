#include "test_util.h"
#include "trainkit/core/fs.h"

using namespace trainkit;

TEST_CASE("The digest equals the one that xxhsum -H2 prints", "[core][digest]") {
  CHECK(Digest::of("") == "99aa06d3014798d86001c324468d497f");
  CHECK(Digest::of("a") == "a96faf705af16834e6c632b61e964e1f");
}

TEST_CASE("Hashing data in pieces gives the digest of the whole", "[core][digest]") {
  std::string bytes;
  for (int i = 0; i < 100'000; ++i) bytes += static_cast<char>(i * 31 % 251);
  Digest digest;
  for (size_t at = 0, step = 1; at < bytes.size(); at += step, step = step % 997 + 1) {
    digest.update(bytes.data() + at, std::min(step, bytes.size() - at));
  }
  CHECK(digest.hex() == Digest::of(bytes));
  bytes[50'000] ^= 1;
  CHECK(digest.hex() != Digest::of(bytes));
}
