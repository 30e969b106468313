#include "io/ffmpeg.h"

#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <set>
#include <utility>

namespace trainkit::detail {
namespace {

constexpr size_t kLargestBlock = size_t{256} << 20;

std::mutex mutex;            // of `living` and of all texts
std::set<void*>& living() {  // never destroyed: FFmpeg's threads may log while the program ends
  static auto* logs = new std::set<void*>;
  return *logs;
}
thread_local FfmpegLog* current = nullptr;

/// The log that `object`'s messages go to; null for an object of somebody else. Call with the mutex held.
FfmpegLog* log_of(void* object) {
  if (current) return current;
  if (!object || *static_cast<const AVClass**>(object) != avcodec_get_class()) return nullptr;
  void* opaque = static_cast<AVCodecContext*>(object)->opaque;
  return living().contains(opaque) ? static_cast<FfmpegLog*>(opaque) : nullptr;
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
  living().insert(this);
}

FfmpegLog::~FfmpegLog() {
  const std::lock_guard lock(mutex);
  living().erase(this);
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
