#pragma once
// Owns FFmpeg's objects and captures FFmpeg's log as text.

#include <memory>
#include <string>

#include "media/ffmpeg_versions.h"

namespace trainkit::detail {

struct FfmpegDeleter {
  void operator()(AVPacket* packet) const { av_packet_free(&packet); }
  void operator()(AVFrame* frame) const { av_frame_free(&frame); }
  void operator()(AVCodecContext* context) const { avcodec_free_context(&context); }
  void operator()(AVCodecParameters* parameters) const { avcodec_parameters_free(&parameters); }
  void operator()(SwrContext* context) const { swr_free(&context); }
  void operator()(SwsContext* context) const { sws_freeContext(context); }
};

template <class T>
using FfmpegPtr = std::unique_ptr<T, FfmpegDeleter>;

/// Captures FFmpeg's error messages.
///
/// Stores the errors that FFmpeg logs in this thread while a Scope exists. A codec context whose `opaque` points to the
/// log also delivers the messages of the codec's own threads.
class FfmpegLog {
 public:
  FfmpegLog();
  ~FfmpegLog();
  FfmpegLog(const FfmpegLog&) = delete;
  FfmpegLog& operator=(const FfmpegLog&) = delete;

  class Scope {
   public:
    explicit Scope(FfmpegLog& log);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    FfmpegLog* before_;
  };

  /// Returns and clears the first error since the last call. Empty if there was none.
  std::string take();

 private:
  friend void log_callback(void* object, int level, const char* format, va_list arguments);
  std::string first_;
};

/// Returns FFmpeg's description of error `code`.
std::string ffmpeg_error(int code);

}  // namespace trainkit::detail
