// A token file: unchanged, and with correct digests at its ends, so that mutations reach the code behind the digest
// check.
#include <algorithm>
#include <span>

#include "target.h"
#include "trainkit/core/fs.h"
#include "trainkit/text/tokenizer.h"

namespace trainkit::fuzz::token_file {

namespace {

constexpr size_t kHeader = 80, kTrailer = 48;

void check(const std::string& path) {
  const auto file = TokenFile::open(path);
  if (!file.ok()) return require_named(file.status(), {"data."});
  const bool whole = file->verify().ok();
  if (!whole) require_named(file->verify(), {"data.tokens"});
  std::vector<int64_t> tokens(static_cast<size_t>(file->size()));
  try {
    file->read(0, tokens);
  } catch (const absl::BadStatusOrAccess& refused) {
    return require_named(refused.status(), {"data.tokens"});
  }
  const bool known =
      std::all_of(tokens.begin(), tokens.end(), [&](int64_t t) { return t >= 0 && t < file->vocab_size(); });
  require(known, "tokens are within the vocabulary");
  const std::string copy = folder() + "/again.tokens";
  const std::vector<TokenId> ids(tokens.begin(), tokens.end());
  const absl::Status saved = write_token_file(copy, file->origin(), [&](const TokenSink& sink) { return sink(ids); });
  require(saved.ok(), "a value that was read can be written: " + saved.ToString());
  const auto again = TokenFile::open(copy);
  require(again.ok() && again->origin() == file->origin() && again->size() == file->size(), "the file is read back");
  std::vector<int64_t> others(tokens.size());
  again->read(0, others);
  require(others == tokens, "the tokens are read back");
}

std::string with_right_digest(std::string bytes) {
  const size_t trailer = bytes.size() - kTrailer;
  Digest digest;
  digest.update(bytes.data(), kHeader);
  digest.update(bytes.data() + trailer, 24);
  const std::string hex = digest.hex();
  for (size_t i = 0; i < 16; ++i)
    bytes[trailer + 24 + i] = static_cast<char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  return bytes;
}

}  // namespace

std::vector<std::string> seeds() {
  std::vector<std::string> files;
  for (const int64_t vocab_size : {100, 70'000}) {
    const std::vector<TokenId> ids = {0, 5, 99, 7, 42};
    const TokenFileOrigin origin{vocab_size, std::string(32, 'a'), std::string(32, '1'), 12};
    const std::string path = folder() + "/seed.tokens";
    require(write_token_file(path, origin, [&](const TokenSink& sink) { return sink(ids); }).ok(), "a seed");
    files.push_back(read_bytes(path));
  }
  return files;
}

int test_one_input(const uint8_t* data, size_t size) {
  static MemoryFile memory;
  const std::string_view bytes = as_text(data, size);
  check(memory.write(bytes));
  if (size >= kHeader + kTrailer) check(memory.write(with_right_digest(std::string(bytes))));
  return 0;
}

const Registered target("token_file", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::token_file
