#include <absl/strings/escaping.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <vector>

#include "core/files/digest_bytes.h"
#include "core/files/new_files.h"
#include "text/token_cache.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/text/tokenizer.h"

// widen() reaches memory speed only with wide vectors, so the dynamic linker selects a version for this CPU. Sanitizers
// are not initialised at that time and get the default version, as does clang, which does not report the selected one.
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TRAINKIT_WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TRAINKIT_WIDE
#endif

namespace trainkit {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr char kMagic[8] = {'T', 'K', 'T', 'O', 'K', 'E', 'N', 'S'};
/// Of files with 2 or 4 bytes per token, and of those with one.
constexpr uint32_t kVersion = 1, kByteVersion = 2;
/// Size of the blocks of check_blocks().
constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr uint32_t kByteOrder = 0x01020304;
constexpr uint32_t kOtherByteOrder = 0x04030201;

using detail::DigestBytes;

// Note [Two digests of a token file]
//
// A token file may have many gigabytes, so open() must not read all of it. It checks only the two ends:
//   The trailer is the last thing written, so a truncated file has none.
//   ends_digest covers the header and the trailer. It detects damage in the fields that open() relies on, such as the
//   number of tokens, before they are used in arithmetic.
//   The size of the file must equal the size computed from these fields.
// contents_digest covers everything before the trailer and is compared only by verify(). Whoever knows the digests of
// blocks passes them to check_blocks(), and read() compares each block once. read() also checks the tokens it copies
// against the vocabulary, because an unverified file may have damaged tokens: widen() returns their maximum, so the
// check costs no second pass.

struct TokenHeader {
  char magic[8];
  uint32_t version;
  uint32_t byte_order;
  uint32_t token_bytes;
  uint32_t reserved;
  uint64_t vocab_size;
  uint64_t source_bytes;
  DigestBytes tokenizer_digest;
  DigestBytes source_digest;
  uint64_t padding;
};
static_assert(sizeof(TokenHeader) == 80);

/// Trailer, after the last token and zeros up to a multiple of 8 bytes.
struct Trailer {
  uint64_t count;
  DigestBytes contents_digest;  // digest of everything before the trailer
  DigestBytes ends_digest;      // digest of the header and the fields above
  char magic[8];
};
static_assert(sizeof(Trailer) == 48);

std::string to_hex(const DigestBytes& bytes) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

DigestBytes ends_digest(const TokenHeader& header, const Trailer& trailer) {
  Digest digest;
  digest.update(&header, sizeof header);
  digest.update(&trailer, offsetof(Trailer, ends_digest));
  return detail::digest_bytes(digest.hex());
}

/// Returns the size of a stored token: the fewest bytes that hold every id of the vocabulary.
uint32_t bytes_per_token(int64_t vocab_size) { return vocab_size <= 256 ? 1 : vocab_size <= 65536 ? 2 : 4; }

/// Whether files of this version and vocabulary have this size of a token. Those of version 1 have at least 2 bytes.
bool may_have_bytes(uint32_t version, uint32_t token_bytes, int64_t vocab_size) {
  const uint32_t expected = bytes_per_token(vocab_size);
  return token_bytes == (version == kVersion ? std::max(expected, 2u) : expected) &&
         (version == kVersion) == (token_bytes > 1);
}

uint64_t padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

absl::Status bad_file(const std::string& path, const std::string& problem, const std::string& got = "",
                      const std::string& expected = "") {
  return data_error("data.tokens", {.file = path}, problem, got, expected,
                    "delete the file; it is rebuilt from the text");
}

absl::Status check_header(const std::string& path, const TokenHeader& header) {
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) return bad_file(path, "not a token file");
  if (header.byte_order == kOtherByteOrder) return bad_file(path, "written on a big-endian machine");
  if (header.version != kVersion && header.version != kByteVersion) {
    return bad_file(path, "unknown version", std::to_string(header.version),
                    fmt::format("{} or {}", kVersion, kByteVersion));
  }
  return absl::OkStatus();
}

absl::Status check_ends(const std::string& path, const TokenHeader& header, const Trailer& trailer, uint64_t between) {
  if (std::memcmp(trailer.magic, kMagic, sizeof kMagic) != 0) return bad_file(path, "cut short: the end is missing");
  if (trailer.ends_digest != ends_digest(header, trailer)) return bad_file(path, "the header or the end is damaged");
  const bool sane = header.byte_order == kByteOrder && header.vocab_size > 0 &&
                    header.vocab_size <= uint64_t{1} << 32 && header.source_bytes <= uint64_t{1} << 62 &&
                    may_have_bytes(header.version, header.token_bytes, static_cast<int64_t>(header.vocab_size));
  if (!sane) return bad_file(path, "the header contradicts itself");
  if (trailer.count > between / header.token_bytes || padded(trailer.count * header.token_bytes) != between) {
    return bad_file(path, "the size differs from the header", fmt::format("{} bytes of tokens", between),
                    fmt::format("{} tokens of {} bytes", trailer.count, header.token_bytes));
  }
  return absl::OkStatus();
}

/// Copies in[i] to out[i] and returns the maximum.
template <class Stored>
inline Stored widen(const Stored* in, int64_t* out, int64_t count) {
  Stored greatest = 0;
  for (int64_t i = 0; i < count; ++i) {
    greatest = std::max(greatest, in[i]);
    out[i] = in[i];
  }
  return greatest;
}
TRAINKIT_WIDE uint32_t widen_8(const uint8_t* in, int64_t* out, int64_t count) { return widen(in, out, count); }
TRAINKIT_WIDE uint32_t widen_16(const uint16_t* in, int64_t* out, int64_t count) { return widen(in, out, count); }
TRAINKIT_WIDE uint32_t widen_32(const uint32_t* in, int64_t* out, int64_t count) { return widen(in, out, count); }

/// Appends tokens in the file's token size and checks each of them.
class Appender {
 public:
  Appender(WritableFile& file, const TokenHeader& header) : file_(file), header_(header) {}

  absl::Status append(std::span<const TokenId> tokens) {
    for (TokenId token : tokens) {
      if (token >= header_.vocab_size) {
        return data_error("data.tokens", {.file = file_.path()},
                          fmt::format("token outside the vocabulary at position {}", count_), std::to_string(token),
                          fmt::format("0..{}", header_.vocab_size - 1));
      }
      ++count_;
    }
    if (header_.token_bytes == 4) return file_.append(tokens.data(), tokens.size_bytes());
    if (header_.token_bytes == 1) return append_as(bytes_, tokens);
    return append_as(words_, tokens);
  }

  /// Writes the zeros after the last token, and the trailer.
  absl::Status finish() {
    const uint64_t bytes = count_ * header_.token_bytes;
    const uint64_t zeros = 0;
    TRAINKIT_RETURN_IF_ERROR(file_.append(&zeros, padded(bytes) - bytes));
    Trailer trailer = {
        .count = count_, .contents_digest = detail::digest_bytes(file_.digest().hex()), .ends_digest = {}, .magic = {}};
    trailer.ends_digest = ends_digest(header_, trailer);
    std::memcpy(trailer.magic, kMagic, sizeof kMagic);
    return file_.append(&trailer, sizeof trailer);
  }

 private:
  template <class Stored>
  absl::Status append_as(std::vector<Stored>& narrow, std::span<const TokenId> tokens) {
    narrow.assign(tokens.begin(), tokens.end());
    return file_.append(narrow.data(), narrow.size() * sizeof(Stored));
  }

  WritableFile& file_;
  const TokenHeader& header_;
  uint64_t count_ = 0;
  std::vector<uint8_t> bytes_;
  std::vector<uint16_t> words_;
};

}  // namespace

TokenFileOrigin origin_of(std::string_view text, const Tokenizer& tokenizer) {
  return {.vocab_size = tokenizer.vocab_size(),
          .tokenizer_digest = tokenizer.digest(),
          .source_digest = Digest::of(text),
          .source_bytes = static_cast<int64_t>(text.size())};
}

struct TokenFile::Blocks {
  std::vector<std::string> digests;
  /// Two readers may compare a block together; both find the same.
  std::unique_ptr<std::atomic<bool>[]> compared;
};

absl::StatusOr<TokenFile> TokenFile::open(const std::string& path) {
  TRAINKIT_ASSIGN_OR_RETURN(auto file, MappedFile::open(path));
  const auto bytes = file->bytes();
  if (bytes.empty()) return bad_file(path, "the file is empty");
  TokenHeader header = {};
  std::memcpy(&header, bytes.data(), std::min(bytes.size(), sizeof header));
  TRAINKIT_RETURN_IF_ERROR(check_header(path, header));
  if (bytes.size() < sizeof(TokenHeader) + sizeof(Trailer)) return bad_file(path, "cut short: the end is missing");
  Trailer trailer;
  std::memcpy(&trailer, bytes.data() + bytes.size() - sizeof trailer, sizeof trailer);
  TRAINKIT_RETURN_IF_ERROR(check_ends(path, header, trailer, bytes.size() - sizeof header - sizeof trailer));
  TokenFileOrigin origin{.vocab_size = static_cast<int64_t>(header.vocab_size),
                         .tokenizer_digest = to_hex(header.tokenizer_digest),
                         .source_digest = to_hex(header.source_digest),
                         .source_bytes = static_cast<int64_t>(header.source_bytes)};
  return TokenFile(std::move(file), std::move(origin), static_cast<int64_t>(trailer.count),
                   static_cast<int>(header.token_bytes));
}

TokenFile::TokenFile(std::shared_ptr<const MappedFile> file, TokenFileOrigin origin, int64_t size, int token_bytes)
    : file_(std::move(file)),
      origin_(std::move(origin)),
      tokens_(file_->bytes().data() + sizeof(TokenHeader)),
      size_(size),
      token_bytes_(token_bytes) {}

absl::Status TokenFile::check_origin(const TokenFileOrigin& expected) const {
  if (origin_ == expected) return absl::OkStatus();
  const bool other_text =
      origin_.source_digest != expected.source_digest || origin_.source_bytes != expected.source_bytes;
  return to_status({.exit_code = ExitCode::kData,
                    .id = "data.stale",
                    .where = path(),
                    .problem = other_text ? "made from another text" : "made by another tokenizer",
                    .got = other_text ? fmt::format("a text of {} bytes", origin_.source_bytes)
                                      : fmt::format("a vocabulary of {}", origin_.vocab_size),
                    .expected = other_text ? fmt::format("the text of {} bytes as it is now", expected.source_bytes)
                                           : fmt::format("the vocabulary of {} in use", expected.vocab_size),
                    .hint = "delete the file; it is rebuilt from the text"},
                   absl::StatusCode::kFailedPrecondition);
}

void TokenFile::read(int64_t begin, std::span<int64_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  TORCH_CHECK_INDEX(begin >= 0 && count <= size_ && begin <= size_ - count, count, " tokens from ", begin,
                    " on are outside the ", size_, " tokens of ", path());
  const std::byte* from = tokens_ + begin * token_bytes_;
  if (blocks_ && count > 0) {
    const auto first = static_cast<size_t>(begin * token_bytes_) / kBlockBytes;
    const auto last = static_cast<size_t>((begin + count) * token_bytes_ - 1) / kBlockBytes;
    for (size_t number = first; number <= last; ++number) {
      if (blocks_->compared[number].load(std::memory_order_relaxed)) continue;
      const bool is_same = Digest::of(block(number)) == blocks_->digests[number];
      if (file_->damaged()) throw absl::BadStatusOrAccess(file_->check());
      if (!is_same) throw absl::BadStatusOrAccess(bad_file(path(), "the tokens are damaged"));
      blocks_->compared[number].store(true, std::memory_order_relaxed);
    }
  }
  const uint32_t greatest = token_bytes_ == 1   ? widen_8(reinterpret_cast<const uint8_t*>(from), out.data(), count)
                            : token_bytes_ == 2 ? widen_16(reinterpret_cast<const uint16_t*>(from), out.data(), count)
                                                : widen_32(reinterpret_cast<const uint32_t*>(from), out.data(), count);
  if (file_->damaged()) throw absl::BadStatusOrAccess(file_->check());
  if (greatest >= vocab_size()) throw absl::BadStatusOrAccess(bad_token(begin, out));
}

absl::Status TokenFile::bad_token(int64_t begin, std::span<const int64_t> tokens) const {
  const auto at = std::find_if(tokens.begin(), tokens.end(), [&](int64_t token) { return token >= vocab_size(); });
  const auto offset = static_cast<int64_t>(sizeof(TokenHeader)) + (begin + (at - tokens.begin())) * token_bytes_;
  return to_status({.exit_code = ExitCode::kData,
                    .id = "data.tokens",
                    .where = fmt::format("{}@{:#x}", path(), offset),
                    .problem = "token outside the vocabulary",
                    .got = std::to_string(*at),
                    .expected = fmt::format("0..{}", vocab_size() - 1)});
}

void TokenFile::prefetch(int64_t begin, int64_t count) const {
  const std::byte* at = tokens_ + begin * token_bytes_;
  for (const std::byte* end = at + count * token_bytes_; at < end; at += 64) __builtin_prefetch(at);
}

absl::Status TokenFile::verify() const {
  const auto bytes = file_->bytes();
  Trailer trailer;
  std::memcpy(&trailer, bytes.data() + bytes.size() - sizeof trailer, sizeof trailer);
  Digest digest;
  digest.update(bytes.data(), bytes.size() - sizeof trailer);
  TRAINKIT_RETURN_IF_ERROR(check());
  if (detail::digest_bytes(digest.hex()) != trailer.contents_digest) return bad_file(path(), "the tokens are damaged");
  return absl::OkStatus();
}

size_t TokenFile::block_count() const {
  return (static_cast<size_t>(size_ * token_bytes_) + kBlockBytes - 1) / kBlockBytes;
}

std::string_view TokenFile::block(size_t number) const {
  const std::string_view all(reinterpret_cast<const char*>(tokens_), static_cast<size_t>(size_ * token_bytes_));
  return all.substr(number * kBlockBytes, kBlockBytes);
}

std::vector<std::string> TokenFile::block_digests() const {
  std::vector<std::string> digests(block_count());
  for (size_t number = 0; number < digests.size(); ++number) digests[number] = Digest::of(block(number));
  return digests;
}

bool TokenFile::check_blocks(std::vector<std::string> digests) {
  if (digests.size() != block_count()) return false;
  blocks_ = std::make_shared<Blocks>();
  blocks_->digests = std::move(digests);
  blocks_->compared = std::make_unique<std::atomic<bool>[]>(block_count());
  return true;
}

absl::Status write_token_file(const std::string& path, const TokenFileOrigin& origin,
                              const std::function<absl::Status(const TokenSink&)>& produce) {
  TORCH_CHECK_VALUE(origin.vocab_size > 0, "vocab_size must be >= 1, got ", origin.vocab_size);
  TokenHeader header = {};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.byte_order = kByteOrder;
  header.token_bytes = bytes_per_token(origin.vocab_size);
  header.version = header.token_bytes == 1 ? kByteVersion : kVersion;
  header.vocab_size = static_cast<uint64_t>(origin.vocab_size);
  header.source_bytes = static_cast<uint64_t>(origin.source_bytes);
  header.tokenizer_digest = detail::digest_bytes(origin.tokenizer_digest);
  header.source_digest = detail::digest_bytes(origin.source_digest);

  if (Fs::posix().exists(path) && !detail::begins_with(path, {{kMagic, sizeof kMagic}})) {
    return detail::foreign_file(path, "is not a token file, which would replace it",
                                "move it away, or choose another folder for the tokens");
  }
  const auto [folder, name] = split_path(path);
  TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, Fs::posix().open_directory(folder));
  return write_file_atomically(directory, name, [&](WritableFile& file) -> absl::Status {
    TRAINKIT_RETURN_IF_ERROR(file.append(&header, sizeof header));
    Appender appender(file, header);
    TRAINKIT_RETURN_IF_ERROR(produce([&](std::span<const TokenId> tokens) { return appender.append(tokens); }));
    return appender.finish();
  });
}

absl::StatusOr<TokenFile> detail::cached_token_file(const std::string& path, const TokenFileOrigin& origin,
                                                    const std::function<absl::Status(const TokenSink&)>& produce) {
  if (auto file = TokenFile::open(path); file.ok() && file->check_origin(origin).ok() && file->verify().ok())
    return file;
  TRAINKIT_RETURN_IF_ERROR(write_token_file(path, origin, produce));
  return TokenFile::open(path);
}

absl::StatusOr<TokenFile> cached_tokens(const std::string& path, std::string_view text, const Tokenizer& tokenizer,
                                        const TokenizeProgress& progress) {
  return detail::cached_token_file(path, origin_of(text, tokenizer),
                                   [&](const TokenSink& sink) { return tokenizer.encode(text, sink, progress); });
}

}  // namespace trainkit
