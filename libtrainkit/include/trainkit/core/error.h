#pragma once
/// Errors as one actionable line, and the exit code of the program.

#include <absl/status/status.h>

#include <optional>
#include <string>
#include <string_view>

namespace trainkit {

/// Exit code of every trainkit program. A run that signal n stopped exits with 128 + n after a verified save.
enum class ExitCode : int {
  kOk = 0,
  kBug = 1,             ///< A bug in trainkit.
  kUsage = 2,           ///< A flag, a combination of flags, or an exception of the caller's own code.
  kConfig = 3,          ///< A configuration file.
  kData = 4,            ///< A data set.
  kWeights = 5,         ///< A weight file or checkpoint that was read.
  kStorage = 6,         ///< A full, read-only or failing disk.
  kOutOfMemory = 7,     ///< Out of memory at one row per micro-batch.
  kDistributed = 8,     ///< Another rank, or the network between them.
  kNumerics = 9,        ///< Repeated values that are not finite.
  kStalledWorker = 10,  ///< A loader worker that did not respond within the timeout.
  kDevice = 11          ///< A failed GPU. It cannot be used until the program is restarted.
};

/// One error as separate fields. All fields except `id` and `problem` may be empty.
struct Error {
  ExitCode exit_code = ExitCode::kBug;
  /// `<class>.<id>`, for example "cli.value" or "data.tokens".
  std::string id = "bug.internal";
  /// The file as the user named it, with ":line:column" or "@0xoffset" if known.
  std::string where = {};
  /// The flag, key, column or tensor that is wrong.
  std::string field = {};
  std::string problem = {};
  /// The actual value and the rule that it violates.
  std::string got = {};
  std::string expected = {};
  /// The remedy; printed on a separate line.
  std::string hint = {};
};

/// Makes a Status that carries `error`. The code follows from the exit code unless it is given; the message is the text
/// of error_line(). The Status is never OK: an error with exit code 0 gets kBug.
absl::Status to_status(const Error& error);
absl::Status to_status(const Error& error, absl::StatusCode code);

/// Returns the error that `status` carries; nullopt for OK and for a Status that does not carry one.
std::optional<Error> error_of(const absl::Status& status);

/// Returns `status` with another exit code and id; keeps code, path and text. OK stays OK.
absl::Status reclassify(const absl::Status& status, ExitCode exit_code, std::string_view id);

/// Returns the exit code for `status`: that of its Error, else one that fits its code (kBug if none does).
ExitCode exit_code(const absl::Status& status);

/// Formats one line of at most 400 bytes, without a newline:
///   error[<class>.<id>] <where>: <field>: <problem> (got <got>, expected <expected>)
/// Escapes control bytes, invalid UTF-8 and text-direction marks, and masks likely secrets.
std::string error_line(const absl::Status& status);

/// Formats the text that a program prints on stderr: "trainkit: " + error_line, then "hint: ..." on a second line if
/// there is a hint.
std::string error_text(const absl::Status& status);

/// Formats the error as JSON for `error.json`: {"exit_code", "id", "where", "field", "problem", "got", "expected",
/// "hint"}.
std::string error_json(const absl::Status& status);

/// Escapes control bytes, invalid UTF-8 and text-direction marks in `text` as \xNN or \u{N}; truncates at `max_bytes`.
std::string escape_text(std::string_view text, size_t max_bytes = 120);

namespace detail {
/// Returns the number of edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`: the restricted
/// Damerau-Levenshtein distance.
size_t edit_distance(std::string_view a, std::string_view b);
}  // namespace detail

/// Returns the candidate nearest to `name` by edit distance, for "did you mean"; empty if none is near.
template <class Names>
std::string nearest_name(std::string_view name, const Names& candidates) {
  std::string best;
  if (name.size() > 64) return best;
  size_t best_distance = name.size() / 3 + 2;  // a larger distance makes no useful suggestion
  for (const auto& candidate : candidates) {
    const size_t distance = detail::edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = std::string(candidate);
    }
  }
  return best;
}

}  // namespace trainkit
