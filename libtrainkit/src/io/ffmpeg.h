#pragma once
// FFmpeg's objects with owners, and its log as text.

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libswresample/swresample.h>
#include <libswscale/swscale.h>
}

#include <memory>
#include <string>

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

/// What FFmpeg said that went wrong.
///
/// Between construction and destruction of a Scope, errors that FFmpeg logs in this thread are kept here. A codec
/// context whose `opaque` is the log brings what the codec's own threads say.
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

  /// The first error since the last call; empty if there was none.
  std::string take();

 private:
  friend void log_callback(void* object, int level, const char* format, va_list arguments);
  std::string first_;
};

/// `code` in words.
std::string ffmpeg_error(int code);

}  // namespace trainkit::detail
