#pragma once
/// What went wrong, in one line that a person can act on, and the code a program exits with.

#include <absl/status/status.h>

#include <optional>
#include <string>
#include <string_view>

namespace trainkit {

/// The exit code of every trainkit program. A run that was stopped by signal n, after a verified save, exits 128 + n.
enum class ExitCode : int {
  kOk = 0,
  kBug = 1,             ///< A fault of ours.
  kUsage = 2,           ///< A flag or a combination of flags.
  kConfig = 3,          ///< A configuration file.
  kData = 4,            ///< A data set.
  kWeights = 5,         ///< A weight file or a checkpoint that is read.
  kStorage = 6,         ///< A disk that is full, read-only or failing.
  kOutOfMemory = 7,     ///< Out of memory with one row at a time.
  kDistributed = 8,     ///< Another rank, or the network between them.
  kNumerics = 9,        ///< Values that are not finite, again and again.
  kStalledWorker = 10,  ///< A loader worker that did not answer within the timeout.
  kDevice = 11          ///< A GPU that failed: nothing can be computed on it until the program starts anew.
};

/// One error, field by field. Everything but `id` and `problem` may be empty.
struct Error {
  ExitCode exit_code = ExitCode::kBug;
  /// `<class>.<id>`, for example "cli.value" or "data.tokens".
  std::string id = "bug.internal";
  /// The file as the user named it, with ":line:column" or "@0xoffset" where they are known.
  std::string where = {};
  /// The flag, key, column or tensor at fault.
  std::string field = {};
  std::string problem = {};
  /// The value met and the rule it breaks.
  std::string got = {};
  std::string expected = {};
  /// What to do about it; printed on a line of its own.
  std::string hint = {};
};

/// A Status that carries `error`. Its code is chosen from the exit code unless given; its message is error_line()'s
/// text.
absl::Status to_status(const Error& error);
absl::Status to_status(const Error& error, absl::StatusCode code);

/// The error that `status` carries; nullopt for a Status that was made elsewhere (or is OK).
std::optional<Error> error_of(const absl::Status& status);

/// The exit code that `status` asks for: that of its Error, else one chosen from its code (kBug if nothing fits).
ExitCode exit_code(const absl::Status& status);

/// One line of at most 400 bytes, without a line end:
///   error[<class>.<id>] <where>: <field>: <problem> (got <got>, expected <expected>)
/// Control bytes, invalid UTF-8 and text-direction marks are escaped; what looks like a secret is masked.
std::string error_line(const absl::Status& status);

/// What a program prints on stderr: "trainkit: " + error_line, then "hint: ..." on a second line where there is one.
std::string error_text(const absl::Status& status);

/// The same as JSON, for `error.json`: {"exit_code", "id", "where", "field", "problem", "got", "expected", "hint"}.
std::string error_json(const absl::Status& status);

/// `text` with control bytes, invalid UTF-8 and text-direction marks written as \xNN or \u{N}; cut at `max_bytes`.
std::string escape_text(std::string_view text, size_t max_bytes = 120);

/// `text` with passwords in URLs (scheme://user:password@) and what follows `...key=`, `...token=`, `...secret=` or
/// `...password=` (also with a colon where the name is api_key, secret or password) written as ***. Any case.
std::string mask_secrets(std::string_view text);

/// The candidate nearest to `name` by edit distance, for "did you mean"; empty if none is near.
template <class Names>
std::string nearest_name(std::string_view name, const Names& candidates);

/// Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`. Damerau-Levenshtein, restricted.
size_t edit_distance(std::string_view a, std::string_view b);

template <class Names>
std::string nearest_name(std::string_view name, const Names& candidates) {
  std::string best;
  if (name.size() > 64) return best;
  size_t best_distance = name.size() / 3 + 2;  // farther than this helps nobody
  for (const auto& candidate : candidates) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = std::string(candidate);
    }
  }
  return best;
}

}  // namespace trainkit
