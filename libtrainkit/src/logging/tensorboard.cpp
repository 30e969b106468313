#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <vector>

#include "logging/append_file.h"
#include "logging/chart_series.h"
#include "logging/escape_name.h"
#include "logging/event_files.h"
#include "logging/media.h"
#include "logging/tf_event.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/sinks.h"

namespace trainkit {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr std::string_view kSuffix = ".trainkit";
/// Before the id of a run.
constexpr std::string_view kRun = ".run-";
constexpr size_t kIdDigits = 16;

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Returns the names of the event files in `folder`, in the order in which TensorBoard reads them.
std::vector<std::string> event_files(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix)) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Returns a name that sorts after `names`, even if the clock went backwards or two files are opened within a second.
std::string next_file_name(const std::vector<std::string>& names, const std::string& run_id) {
  int64_t seconds = static_cast<int64_t>(wall_time());
  for (const std::string& name : names) {
    int64_t taken = 0;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), taken);
    if (taken < 9'999'999'999) seconds = std::max(seconds, taken + 1);
  }
  char host[256] = "localhost";
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  return fmt::format("{}{:010}.{}.{}{}{}{}", kPrefix, seconds, host, ::getpid(), run_id.empty() ? "" : kRun, run_id,
                     kSuffix);
}

}  // namespace

bool detail::is_event_file_of(std::string_view name, const std::string& run_id) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return false;
  name.remove_suffix(kSuffix.size());
  const size_t run = name.rfind(kRun);
  const std::string_view id = run == name.npos ? "" : name.substr(run + kRun.size());
  const bool has_id = id.size() == kIdDigits && id.find_first_not_of("0123456789abcdef") == id.npos;
  return has_id ? id == run_id : run_id.empty();
}

class TensorBoardLogger::Impl {
 public:
  Impl(std::string folder, std::map<std::string, std::string> settings, std::string run_id)
      : folder_(std::move(folder)), settings_(std::move(settings)), run_id_(std::move(run_id)) {}

  void write(const detail::EventBuilder& event) {
    if (!file_ && !open_file()) return;
    file_->append(detail::frame_record(event.finish()));
  }

  /// Marks the run as finished.
  void end() {
    if (!file_ || settings_.empty()) return;
    detail::EventBuilder event(wall_time(), 0);
    event.hparams_end(wall_time());
    write(event);
  }

  absl::Status flush() {
    if (file_) return file_->flush();
    return std::exchange(open_error_, absl::OkStatus());
  }

  absl::Status rewind(int64_t step) {
    file_.reset();
    for (const std::string& name : event_files(folder_)) {
      if (!detail::is_event_file_of(name, run_id_)) continue;
      TRAINKIT_RETURN_IF_ERROR(rewind_file(folder_ + "/" + name, step));
    }
    restart_step_ = step + 1;
    return absl::OkStatus();
  }

 private:
  bool open_file() {
    auto file = detail::AppendFile::open(folder_ + "/" + next_file_name(event_files(folder_), run_id_));
    if (!file.ok()) {
      open_error_.Update(file.status());
      return false;
    }
    file_ = std::move(*file);
    detail::EventBuilder version(wall_time(), 0);
    version.file_version();
    write(version);
    if (restart_step_ > 0) {
      detail::EventBuilder restart(wall_time(), restart_step_);
      restart.session_start();
      write(restart);
    }
    if (!settings_.empty()) {
      detail::EventBuilder description(wall_time(), 0);
      description.hparams_start(settings_, wall_time());
      description.chart_layout();
      write(description);
    }
    return true;
  }

  /// Returns the offset of the first record of an end of a file; the length of `bytes` if there is none.
  static size_t first_record(std::string_view bytes) {
    for (size_t at = 0; at < bytes.size(); ++at) {
      size_t end = at;
      if (detail::next_record(bytes, end)) return at;
    }
    return bytes.size();
  }

  /// Reads the end of a file; more and more of it, until an event is in it that stays.
  static absl::Status rewind_file(const std::string& path, int64_t step) {
    TRAINKIT_ASSIGN_OR_RETURN(const ReadableFile file, Fs::posix().open_file(path));
    const int64_t size = file.size_bytes();
    constexpr int64_t kEndBytes = int64_t{4} << 20;
    for (int64_t most = kEndBytes;; most *= 2) {
      const int64_t begin = std::max<int64_t>(size - most, 0);
      std::string bytes(static_cast<size_t>(size - begin), '\0');
      TRAINKIT_RETURN_IF_ERROR(file.read_at(begin, bytes.data(), bytes.size()));
      const size_t keep = kept_bytes(bytes, begin == 0, step);
      if (keep == 0 && begin > 0) continue;
      if (keep == 0) {
        if (::unlink(path.c_str()) != 0) return detail::storage_error(path, "cannot remove", errno);
      } else if (keep < bytes.size() && ::truncate(path.c_str(), begin + static_cast<off_t>(keep)) != 0) {
        return detail::storage_error(path, "cannot truncate to the last complete record", errno);
      }
      return absl::OkStatus();
    }
  }

  /// Returns the end of the last event that stays in a file, or in an end of it; 0 without one.
  static size_t kept_bytes(std::string_view bytes, bool is_whole, int64_t step) {
    size_t offset = is_whole ? 0 : first_record(bytes), keep = 0;
    bool is_first = is_whole;  // the file version; a file with only that and descriptions is removed
    while (const auto event = detail::next_record(bytes, offset)) {
      // A restart mark has the step after the one that the run resumed from, so it is kept at step + 1.
      if (detail::event_is_description(*event)) continue;
      const bool is_mark = detail::event_is_session(*event);
      const int64_t at = detail::event_step(*event).value_or(step + 1);
      if (at > step + (is_mark ? 1 : 0) || (at == step && detail::event_is_of(*event, "test"))) break;
      if (!is_mark && !is_first) keep = offset;
      is_first = false;
    }
    return keep;
  }

  const std::string folder_;
  const std::map<std::string, std::string> settings_;
  const std::string run_id_;
  std::unique_ptr<detail::AppendFile> file_;
  absl::Status open_error_;
  int64_t restart_step_ = 0;
};

TensorBoardLogger::TensorBoardLogger(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TensorBoardLogger::~TensorBoardLogger() = default;

absl::StatusOr<std::unique_ptr<TensorBoardLogger>> TensorBoardLogger::open(
    const std::string& folder, const std::map<std::string, std::string>& settings, const std::string& run_id) {
  TRAINKIT_RETURN_IF_ERROR(Fs::posix().create_directories(folder).status());
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return detail::storage_error(folder, "cannot create", errno);
  return std::unique_ptr<TensorBoardLogger>(new TensorBoardLogger(std::make_unique<Impl>(folder, settings, run_id)));
}

void TensorBoardLogger::log(const LogRecord& record) {
  detail::EventBuilder event(wall_time(), record.step);
  for (const auto& [name, value] : detail::chart_series(record)) {
    event.scalar(detail::escape_name(name), static_cast<float>(value));
  }
  impl_->write(event);
}

void TensorBoardLogger::log_text(const LogText& text) {
  detail::EventBuilder event(wall_time(), text.step);
  event.text(detail::escape_name(text.tag), format_text(text.text));
  impl_->write(event);
}

void TensorBoardLogger::log_image(const LogImage& image) {
  detail::EventBuilder event(wall_time(), image.step);
  event.image(detail::escape_name(image.tag), image.pixels.size(0), image.pixels.size(1), detail::png_of(image));
  impl_->write(event);
}

void TensorBoardLogger::log_histogram(const LogHistogram& histogram) {
  detail::EventBuilder event(wall_time(), histogram.step);
  event.histogram(detail::escape_name(histogram.tag), histogram);
  impl_->write(event);
}

absl::Status TensorBoardLogger::flush() { return impl_->flush(); }
absl::Status TensorBoardLogger::close() {
  impl_->end();
  return impl_->flush();
}
absl::Status TensorBoardLogger::rewind(int64_t step) { return impl_->rewind(step); }

}  // namespace trainkit
