#include "emotion_recognition/clip_cache.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/files/new_files.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/media/media.h"

namespace trainkit::emotion {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// Note [Filling of the cache]
//
// Ranks of a run and other runs may want the same cache at once. Each folder has a lock file.
//
// 1. The first process of a run checks the free space. Then it takes the free locks in the order of the parts, up to
//    the first one that another run holds.
// 2. Then the ranks meet at the barrier. Without it another rank could take a lock before the first process, and decode
//    without the check of the free space.
// 3. Every process then waits for its remaining locks, in the same order, so no two processes wait for each other.
// 4. All locks are kept until every part is full. A process that has waited reopens the files and finds them full.
//
// A row is valid only with a matching digest, so a process may be killed at any time. bad.json is written also after a
// stopped build, so that bad clips found so far are not opened again. The digest of origin_of() in `rows` and bad.json
// makes both invalid when clips, options or decoding libraries change.
constexpr auto kPollEvery = std::chrono::milliseconds(50);
constexpr auto kReportEvery = std::chrono::seconds(2);
constexpr int64_t kMaxJsonBytes = int64_t{256} << 20;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Returns whether an error is a lasting property of the clip: damaged or missing, not a timeout or a permission.
bool is_lasting(const Error& error) { return error.id == "data.media" || error.id == "data.missing"; }

std::string options_text(const ClipDatasetOptions& options) {
  return fmt::format("modality {}, {} frames of {}, {} samples at {} Hz\n", static_cast<int>(options.modality),
                     options.frames, options.image_size, options.samples, options.sample_rate);
}

/// Returns the folder of a part. It depends on the paths of its table and clips and on the options.
std::string folder_of(const ClipPart& part, const std::string& folder) {
  const ClipList& list = part.clips->list();
  const std::string what = fmt::format("{}\n{}\n{}", fs::absolute(list.csv).string(),
                                       fs::absolute(list.folder).string(), options_text(part.clips->options()));
  return fmt::format("{}/{}-{}", folder, part.name, Digest::of(what).substr(0, 8));
}

/// Returns the size of the part's file if it does not exist yet with its full size; otherwise 0.
int64_t missing_bytes(const ClipPart& part, const std::string& folder) {
  std::error_code error;
  const int64_t bytes = DiskCachedDataset::file_bytes(*part.clips);
  const auto there = fs::file_size(folder_of(part, folder) + "/rows", error);
  return !error && static_cast<int64_t>(there) == bytes ? 0 : bytes;
}

absl::Status check_room(const std::vector<ClipPart>& parts, const std::string& folder) {
  int64_t needed = 0;
  for (const ClipPart& part : parts) needed += missing_bytes(part, folder);
  TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, Fs::posix().create_directories(folder));
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t room, directory.free_bytes());
  if (room >= needed) return absl::OkStatus();
  return to_status(
      {.exit_code = ExitCode::kStorage,
       .id = "storage.cache",
       .where = folder,
       .field = "cache_dir",
       .problem = "not enough space for " + describe_bytes(needed) + " of decoded clips",
       .got = describe_bytes(room) + " free",
       .expected = describe_bytes(needed - room) + " more",
       .hint = "use fewer --frames or a smaller --image_size, or decode in each epoch without --cache_dir"},
      absl::StatusCode::kResourceExhausted);
}

/// Waits until this process has the lock of `directory`. kCancelled if options.stop returns true.
absl::Status lock(const Directory& directory, const ClipCacheOptions& options) {
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
absl::Status fill(const ClipPart& part, const RememberedClips& clips, const DiskCachedDataset& rows,
                  const Directory& directory, const std::string& origin, const ClipCacheOptions& options) {
  const auto say = [&](const std::string& text) {
    if (options.say) options.say("cache      " + part.name + ": " + text);
  };
  const int64_t there = rows.cached_rows();
  if (there + clips.bad() == rows.size()) {
    say(fmt::format("{} clips cached, {} cannot be read", there, clips.bad()));
    return absl::OkStatus();
  }
  const Clock::time_point start = Clock::now();
  Clock::time_point reported = start;
  const auto built = rows.build(options.num_threads, [&](int64_t done, int64_t total) {
    if (Clock::now() - reported >= kReportEvery) {
      reported = Clock::now();
      const double rate = static_cast<double>(done) / seconds_since(start);
      say(fmt::format("{} of {} clips, {:.0f}/s, {} left", done, total, rate,
                      format_duration(static_cast<double>(total - done) / rate)));
    }
    return !options.stop || !options.stop();
  });
  // Also after a stopped build. See Note [Filling of the cache].
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(directory, "bad.json", clips.to_json(origin)));
  TRAINKIT_RETURN_IF_ERROR(built.status());
  const double seconds = seconds_since(start);
  say(fmt::format("{} clips decoded in {:.1f} s ({:.0f}/s), {} cached before, {} cannot be read",
                  rows.cached_rows() - there, seconds, static_cast<double>(rows.cached_rows() - there) / seconds, there,
                  built->refused.size()));
  return absl::OkStatus();
}

}  // namespace

void RememberedClips::get(const RowKey& key, const BatchView& out, int64_t at) const {
  {
    const std::lock_guard lock(mutex_);
    const auto known = bad_.find(key.index);
    if (known != bad_.end()) throw absl::BadStatusOrAccess(known->second);
  }
  try {
    clips_->get(key, out, at);
  } catch (const absl::BadStatusOrAccess& e) {
    const auto error = error_of(e.status());
    if (error && is_lasting(*error)) {
      const std::lock_guard lock(mutex_);
      bad_.emplace(key.index, e.status());
    }
    throw;
  }
}

int64_t RememberedClips::bad() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(bad_);
}

std::string RememberedClips::to_json(const std::string& origin) const {
  const std::lock_guard lock(mutex_);
  std::vector<int64_t> indices;
  for (const auto& [index, status] : bad_) indices.push_back(index);
  std::sort(indices.begin(), indices.end());
  Json rows = Json::array();
  for (const int64_t index : indices) {
    Json row = Json::parse(error_json(bad_.at(index)));
    row["row"] = index;
    row["code"] = bad_.at(index).raw_code();
    rows.push_back(std::move(row));
  }
  return Json{{"origin", Digest::of(origin)}, {"rows", std::move(rows)}}.dump(1) + "\n";
}

void RememberedClips::read_json(const std::string& text, const std::string& origin) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("origin", Json()) != Json(Digest::of(origin)) || !json.contains("rows")) return;
  const std::lock_guard lock(mutex_);
  for (const Json& row : json["rows"]) {
    const auto text_of = [&](const char* name) {
      return row.contains(name) && row[name].is_string() ? row[name].get<std::string>() : std::string();
    };
    const auto number_of = [&](const char* name) {
      return row.contains(name) && row[name].is_number_integer() ? row[name].get<int64_t>() : -1;
    };
    const Error error{.exit_code = ExitCode::kData,
                      .id = text_of("id"),
                      .where = text_of("where"),
                      .field = text_of("field"),
                      .problem = text_of("problem"),
                      .got = text_of("got"),
                      .expected = text_of("expected"),
                      .hint = text_of("hint")};
    const int64_t index = number_of("row"), code = number_of("code");
    if (!is_lasting(error) || index < 0 || index >= size() || code < 1 || code > 16) continue;
    bad_.emplace(index, to_status(error, static_cast<absl::StatusCode>(code)));
  }
}

std::string origin_of(const ClipDataset& clips) {
  std::string text = media_libraries() + "\n" + options_text(clips.options());
  if (clips.options().modality != Modality::kVisual) text += std::string("sound: ") + kSoundMix + "\n";
  for (const Clip& clip : clips.list().clips) {
    struct stat info {};
    const bool there = ::stat(clip.path.c_str(), &info) == 0;
    text += fmt::format("{} {} {} {}.{:09}\n", clip.path, clip.label, there ? info.st_size : -1, info.st_mtim.tv_sec,
                        info.st_mtim.tv_nsec);
  }
  return text;
}

absl::StatusOr<std::vector<std::shared_ptr<const Dataset>>> cache_clips(const std::vector<ClipPart>& parts,
                                                                        const ClipCacheOptions& options) {
  std::vector<Directory> locked;  // see Note [Filling of the cache]
  if (options.first) TRAINKIT_RETURN_IF_ERROR(check_room(parts, options.folder));
  for (const ClipPart& part : parts) {
    TRAINKIT_ASSIGN_OR_RETURN(Directory directory, Fs::posix().create_directories(folder_of(part, options.folder)));
    locked.push_back(std::move(directory));
  }
  size_t taken = 0;
  while (options.first && taken < locked.size() && locked[taken].try_lock().ok()) ++taken;
  if (options.barrier) TRAINKIT_RETURN_IF_ERROR(options.barrier());
  for (; taken < locked.size(); ++taken) TRAINKIT_RETURN_IF_ERROR(lock(locked[taken], options));

  std::vector<std::shared_ptr<const Dataset>> cached;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string origin = origin_of(*parts[i].clips);
    const auto clips = std::make_shared<RememberedClips>(parts[i].clips);
    const auto known = locked[i].read_file("bad.json", kMaxJsonBytes);
    if (known.ok() && !known->empty() && !known->starts_with("{\n \"origin\": ")) {
      return trainkit::detail::foreign_file(locked[i].path() + "/bad.json",
                                            "is not a list of bad clips, which would replace it",
                                            "move it away, or choose another --cache_dir");
    }
    if (known.ok()) clips->read_json(*known, origin);
    TRAINKIT_ASSIGN_OR_RETURN(const auto rows, DiskCachedDataset::open(clips, locked[i].path() + "/rows", origin));
    TRAINKIT_RETURN_IF_ERROR(fill(parts[i], *clips, *rows, locked[i], origin, options));
    cached.push_back(rows);
  }
  return cached;
}

std::string describe_cache(const std::vector<ClipPart>& parts, const std::string& folder) {
  int64_t bytes = 0, missing = 0, clips = 0;
  for (const ClipPart& part : parts) {
    bytes += DiskCachedDataset::file_bytes(*part.clips);
    missing += missing_bytes(part, folder);
    clips += part.clips->size();
  }
  return fmt::format("{} for {} clips in {}{}", format_size(bytes), clips, folder,
                     missing > 0 ? fmt::format(", {} of them not decoded yet", format_size(missing)) : "");
}

}  // namespace trainkit::emotion
