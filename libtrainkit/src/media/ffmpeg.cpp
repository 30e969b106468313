#include "media/ffmpeg.h"

#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <set>
#include <utility>

namespace trainkit::detail {
namespace {

// Note [FFmpeg's log as errors]
//
// FFmpeg has one log callback per process, called on any thread: ours, a codec's own threads, or a thread of another
// FFmpeg user. log_of() selects the FfmpegLog in this order:
//   1. the Scope of the calling thread (thread_local `current`), for demuxers, scalers and resamplers;
//   2. the `opaque` pointer of a codec context, for messages from the codec's threads.
// A codec thread may still log while its MediaFile is being destroyed, and another user's `opaque` may be any pointer.
// So an `opaque` is used only if it is registered in registered_logs(), under `mutex`, which ~FfmpegLog takes to
// unregister. Messages without a log go to FFmpeg's default callback.

constexpr size_t kLargestBlock = size_t{256} << 20;

std::mutex mutex;                     // guards registered_logs() and every FfmpegLog::first_
std::set<void*>& registered_logs() {  // never destroyed: FFmpeg's threads may log during program exit
  static auto* logs = new std::set<void*>;
  return *logs;
}
thread_local FfmpegLog* current = nullptr;

/// Returns the log for messages of `object`, or nullptr if another user owns it. Requires `mutex`; see Note [FFmpeg's
/// log as errors].
FfmpegLog* log_of(void* object) {
  if (current) return current;
  if (!object || *static_cast<const AVClass**>(object) != avcodec_get_class()) return nullptr;
  void* opaque = static_cast<AVCodecContext*>(object)->opaque;
  return registered_logs().contains(opaque) ? static_cast<FfmpegLog*>(opaque) : nullptr;
}

}  // namespace

void log_callback(void* object, int level, const char* format, va_list arguments) {
  {
    const std::lock_guard lock(mutex);
    if (FfmpegLog* log = log_of(object)) {
      if (level > AV_LOG_ERROR || !log->first_.empty()) return;
      char text[256];
      std::vsnprintf(text, sizeof(text), format, arguments);
      log->first_ = text;
      while (!log->first_.empty() && (log->first_.back() == '\n' || log->first_.back() == '.')) log->first_.pop_back();
      return;
    }
  }
  av_log_default_callback(object, level, format, arguments);
}

FfmpegLog::FfmpegLog() {
  static std::once_flag once;
  std::call_once(once, [] {
    av_log_set_callback(log_callback);
    av_max_alloc(kLargestBlock);
  });
  const std::lock_guard lock(mutex);
  registered_logs().insert(this);
}

FfmpegLog::~FfmpegLog() {
  const std::lock_guard lock(mutex);
  registered_logs().erase(this);
}

std::string FfmpegLog::take() {
  const std::lock_guard lock(mutex);
  return std::exchange(first_, {});
}

FfmpegLog::Scope::Scope(FfmpegLog& log) : before_(std::exchange(current, &log)) {}
FfmpegLog::Scope::~Scope() { current = before_; }

std::string ffmpeg_error(int code) {
  char text[AV_ERROR_MAX_STRING_SIZE] = {};
  av_strerror(code, text, sizeof(text));
  return text;
}

}  // namespace trainkit::detail
