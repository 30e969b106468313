#include "trainkit/data/row_cache.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "core/files/new_files.h"
#include "data/datasets/remembered_rows.h"
#include "trainkit/core/format.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

using detail::RememberedRows;
using Clock = std::chrono::steady_clock;

// Note [Filling of the cache]
//
// Ranks of a run and other runs may want the same cache at once. Each folder has a lock file.
//
// 1. The first process of a run checks the free space. Then it takes the free locks in the order of the parts, up to
//    the first one that another run holds.
// 2. Then the ranks meet at the barrier. Without it another rank could take a lock before the first process, and read
//    without the check of the free space.
// 3. Every process then waits for its remaining locks, in the same order, so no two processes wait for each other.
// 4. All locks are kept until every part is full. A process that has waited reopens the files and finds them full.
//
// A row is valid only with a matching digest, so a process may be killed at any time. bad.json is written also after a
// stopped build, so that bad rows found so far are not read again. The digest of the origin in `rows` and bad.json
// makes both invalid when the origin changes.
constexpr auto kPollEvery = std::chrono::milliseconds(50);
constexpr auto kReportEvery = std::chrono::seconds(2);
constexpr int64_t kMaxJsonBytes = int64_t{256} << 20;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string folder_of(const RowCachePart& part, const std::string& folder) {
  return fmt::format("{}/{}-{}", folder, part.name, Digest::of(part.key).substr(0, 8));
}

/// Returns the size of the part's file if it does not exist yet with its full size; otherwise 0.
int64_t missing_bytes(const RowCachePart& part, const std::string& folder) {
  std::error_code error;
  const int64_t bytes = DiskCachedDataset::file_bytes(*part.rows);
  const auto there = std::filesystem::file_size(folder_of(part, folder) + "/rows", error);
  return !error && static_cast<int64_t>(there) == bytes ? 0 : bytes;
}

absl::Status check_room(const std::vector<RowCachePart>& parts, const RowCacheOptions& options) {
  int64_t needed = 0;
  for (const RowCachePart& part : parts) needed += missing_bytes(part, options.folder);
  TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, Fs::posix().create_directories(options.folder));
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t room, directory.free_bytes());
  if (room >= needed) return absl::OkStatus();
  return to_status(
      {.exit_code = ExitCode::kStorage,
       .id = "storage.cache",
       .where = options.folder,
       .problem = fmt::format("not enough space for {} of decoded {}", describe_bytes(needed), options.noun),
       .got = describe_bytes(room) + " free",
       .expected = describe_bytes(needed - room) + " more",
       .hint = options.hint},
      absl::StatusCode::kResourceExhausted);
}

/// Waits until this process has the lock of `directory`. kCancelled if options.stop returns true.
absl::Status lock(const Directory& directory, const RowCacheOptions& options) {
  bool reported = false;
  while (!directory.try_lock().ok()) {
    if (options.stop && options.stop()) return absl::CancelledError(directory.path() + ": stopped while waiting");
    if (!reported && options.say)
      options.say(fmt::format("cache      another process is filling {}; waiting", directory.path()));
    reported = true;
    std::this_thread::sleep_for(kPollEvery);
  }
  return absl::OkStatus();
}

/// Decodes the missing rows of a part and writes bad.json.
absl::Status fill(const RowCachePart& part, const RememberedRows& remembered, const DiskCachedDataset& rows,
                  const Directory& directory, const std::string& origin, const RowCacheOptions& options) {
  const auto say = [&](const std::string& text) {
    if (options.say) options.say("cache      " + part.name + ": " + text);
  };
  const int64_t there = rows.cached_rows();
  if (there + remembered.bad() == rows.size()) {
    say(fmt::format("{} {} cached, {} cannot be read", there, options.noun, remembered.bad()));
    return absl::OkStatus();
  }
  const Clock::time_point start = Clock::now();
  Clock::time_point reported = start;
  const auto built = rows.build(options.num_threads, [&](int64_t done, int64_t total) {
    if (Clock::now() - reported >= kReportEvery) {
      reported = Clock::now();
      const double rate = static_cast<double>(done) / seconds_since(start);
      say(fmt::format("{} of {} {}, {:.0f}/s, {} left", done, total, options.noun, rate,
                      format_duration(static_cast<double>(total - done) / rate)));
    }
    return !options.stop || !options.stop();
  });
  // Also after a stopped build. See Note [Filling of the cache].
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(directory, "bad.json", remembered.to_json(origin)));
  TRAINKIT_RETURN_IF_ERROR(built.status());
  const double seconds = seconds_since(start);
  say(fmt::format("{} {} decoded in {:.1f} s ({:.0f}/s), {} cached before, {} cannot be read",
                  rows.cached_rows() - there, options.noun, seconds,
                  static_cast<double>(rows.cached_rows() - there) / seconds, there, built->refused.size()));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::shared_ptr<const DiskCachedDataset>>> cache_rows(const std::vector<RowCachePart>& parts,
                                                                                 const RowCacheOptions& options) {
  std::vector<Directory> locked;  // see Note [Filling of the cache]
  if (options.first) TRAINKIT_RETURN_IF_ERROR(check_room(parts, options));
  for (const RowCachePart& part : parts) {
    TRAINKIT_ASSIGN_OR_RETURN(Directory directory, Fs::posix().create_directories(folder_of(part, options.folder)));
    locked.push_back(std::move(directory));
  }
  size_t taken = 0;
  while (options.first && taken < locked.size() && locked[taken].try_lock().ok()) ++taken;
  if (options.barrier) TRAINKIT_RETURN_IF_ERROR(options.barrier());
  for (; taken < locked.size(); ++taken) TRAINKIT_RETURN_IF_ERROR(lock(locked[taken], options));

  std::vector<std::shared_ptr<const DiskCachedDataset>> cached;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string origin = parts[i].origin();
    const auto remembered = std::make_shared<RememberedRows>(parts[i].rows, options.is_lasting);
    const auto known = locked[i].read_file("bad.json", kMaxJsonBytes);
    if (known.ok() && !known->empty() && !known->starts_with("{\n \"origin\": ")) {
      return detail::foreign_file(locked[i].path() + "/bad.json", "is not a list of bad rows, which would replace it",
                                  "move it away, or choose another folder for the cache");
    }
    if (known.ok()) remembered->read_json(*known, origin);
    TRAINKIT_ASSIGN_OR_RETURN(const auto rows, DiskCachedDataset::open(remembered, locked[i].path() + "/rows", origin));
    TRAINKIT_RETURN_IF_ERROR(fill(parts[i], *remembered, *rows, locked[i], origin, options));
    cached.push_back(rows);
  }
  return cached;
}

std::string describe_row_cache(const std::vector<RowCachePart>& parts, const RowCacheOptions& options) {
  int64_t bytes = 0, missing = 0, rows = 0;
  for (const RowCachePart& part : parts) {
    bytes += DiskCachedDataset::file_bytes(*part.rows);
    missing += missing_bytes(part, options.folder);
    rows += part.rows->size();
  }
  return fmt::format("{} for {} {} in {}{}", format_size(bytes), rows, options.noun, options.folder,
                     missing > 0 ? fmt::format(", {} of them not decoded yet", format_size(missing)) : "");
}

}  // namespace trainkit
