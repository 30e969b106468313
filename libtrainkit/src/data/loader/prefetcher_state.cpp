// The position that Prefetcher saves and loads.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "data/loader/prefetcher_impl.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

constexpr size_t kDigestDigits = 32;

/// Returns a digest of the fields, followed by one of three rows (first, middle, last) read without an augmentation
/// seed. Data sets with other contents have other digests. Empty if a row cannot be read.
std::string digest_of_rows(const Dataset& dataset) try {
  std::vector<std::vector<std::byte>> memory;
  std::vector<BatchView::Field> fields;
  for (const FieldSpec& field : dataset.fields()) memory.emplace_back(field.row_bytes());
  fields.reserve(memory.size());
  for (std::vector<std::byte>& bytes : memory) {
    fields.push_back({.data = bytes.data(), .row_bytes = static_cast<int64_t>(bytes.size())});
  }
  std::ostringstream field_list;
  for (const FieldSpec& field : dataset.fields()) field_list << field << "\n";
  Digest digest;
  for (const int64_t index : {int64_t{0}, dataset.size() / 2, dataset.size() - 1}) {
    for (std::vector<std::byte>& bytes : memory) std::fill(bytes.begin(), bytes.end(), std::byte{});
    const RowKey key{.index = index, .origin = index, .draw = RowKey::kUndrawn};
    dataset.get_batch({&key, 1}, BatchView(fields, 1));
    for (const std::vector<std::byte>& bytes : memory) digest.update(bytes.data(), bytes.size());
  }
  return Digest::of(field_list.str()) + digest.hex();
} catch (...) {
  return {};  // next() reports the bad row when it reaches it
}

}  // namespace

StateDict Prefetcher::Impl::state_dict() const {
  return {{"epoch", epoch_},
          {"rows", at_epoch_end() ? sampler().epoch_size() : position_ * sampler().world_size()},
          {"seed", static_cast<int64_t>(sampler().seed())},
          {"size", dataset().size()},
          {"digest", rows_digest()}};
}

const std::string& Prefetcher::Impl::rows_digest() const {
  if (!rows_digest_) rows_digest_ = dataset().size() > 0 ? digest_of_rows(dataset()) : "";
  return *rows_digest_;
}

absl::Status Prefetcher::Impl::load_state_dict(const StateDict& state) {
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t epoch, get_state<int64_t>(state, "epoch"));
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t rows, get_state<int64_t>(state, "rows"));
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t seed, get_state<int64_t>(state, "seed"));
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t size, get_state<int64_t>(state, "size"));
  const auto digest = get_state<std::string>(state, "digest");  // missing in older checkpoints
  const auto refuse = [](std::string field, std::string problem, std::string got, std::string expected,
                         std::string hint) {
    return to_status({.exit_code = ExitCode::kWeights,
                      .id = "ckpt.data",
                      .field = std::move(field),
                      .problem = std::move(problem),
                      .got = std::move(got),
                      .expected = std::move(expected),
                      .hint = std::move(hint)},
                     absl::StatusCode::kInvalidArgument);
  };
  const int64_t world = sampler().world_size();
  if (size != dataset().size()) {
    return refuse("size", "the checkpoint was made with another data set", std::to_string(size),
                  std::to_string(dataset().size()) + " rows",
                  "resume with the data set of the run, or start a new run from its weights");
  }
  // Compare rows only if the fields agree: other fields (pixels instead of patches) give other bytes for the same rows.
  if (digest.ok() && !digest->empty() && *digest != rows_digest() &&
      digest->substr(0, kDigestDigits) == rows_digest().substr(0, kDigestDigits)) {
    return refuse("digest", "the checkpoint was made with other rows", *digest, rows_digest(),
                  "resume with the data set of the run, or start a new run from its weights");
  }
  if (seed != static_cast<int64_t>(sampler().seed())) {
    return refuse("seed", "the checkpoint was made with another order of rows", std::to_string(seed),
                  std::to_string(static_cast<int64_t>(sampler().seed())), "resume with the seed of the run");
  }
  if (epoch < 0) return refuse("epoch", "out of range", std::to_string(epoch), ">= 0", "");
  const int64_t whole = sampler().epoch_size();
  if (rows < 0 || rows > whole)
    return refuse("rows", "out of range", std::to_string(rows), "0.." + std::to_string(whole), "");
  if (rows < whole && rows % world != 0) {
    return refuse("rows", "the position in the epoch is not a multiple of the world size", std::to_string(rows),
                  "a multiple of " + std::to_string(world),
                  "resume with the original number of ranks, or a divisor of it");
  }
  go_to(epoch, rows < whole ? rows / world : sampler().size());
  return absl::OkStatus();
}

}  // namespace trainkit
