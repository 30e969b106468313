// Detects the container, selects its streams, and reads all packets of the selected ones.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "media/media_layout.h"
#include "media/media_source.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/io/mapped_file.h"

namespace trainkit::detail {
namespace {

constexpr int kBufferBytes = 1 << 15;

/// Provides a file in memory to FFmpeg. Opens nothing.
class MemoryInput {
 public:
  explicit MemoryInput(std::span<const std::byte> file) : file_(file) {
    auto* buffer = static_cast<unsigned char*>(av_malloc(kBufferBytes));
    if (buffer) context_ = avio_alloc_context(buffer, kBufferBytes, 0, this, read, nullptr, seek);
    if (buffer && !context_) av_free(buffer);
  }
  ~MemoryInput() {
    if (context_) av_freep(&context_->buffer);
    avio_context_free(&context_);
  }
  MemoryInput(const MemoryInput&) = delete;
  MemoryInput& operator=(const MemoryInput&) = delete;
  AVIOContext* context() const { return context_; }

 private:
  static int read(void* self, uint8_t* out, int size) {
    auto& input = *static_cast<MemoryInput*>(self);
    const int64_t bytes = std::min<int64_t>(size, std::ssize(input.file_) - input.at_);
    if (bytes <= 0) return AVERROR_EOF;
    std::memcpy(out, input.file_.data() + input.at_, static_cast<size_t>(bytes));
    input.at_ += bytes;
    return static_cast<int>(bytes);
  }
  static int64_t seek(void* self, int64_t offset, int whence) {
    auto& input = *static_cast<MemoryInput*>(self);
    const int64_t size = std::ssize(input.file_);
    if (whence & AVSEEK_SIZE) return size;
    whence &= ~AVSEEK_FORCE;
    const int64_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? input.at_ : size;
    if (offset < -base || offset > std::numeric_limits<int64_t>::max() - base) return AVERROR(EINVAL);
    return input.at_ = base + offset;
  }

  std::span<const std::byte> file_;
  int64_t at_ = 0;
  AVIOContext* context_ = nullptr;
};

int refuse_to_open(AVFormatContext*, AVIOContext**, const char*, int, AVDictionary**) { return AVERROR(EPERM); }
int is_too_late(void* deadline) { return static_cast<const Deadline*>(deadline)->passed(); }

/// Shortens the name of a format: "mov,mp4,m4a,3gp,3g2,mj2" becomes "mov".
std::string short_name(const AVInputFormat& format) {
  const std::string_view name = format.name;
  return std::string(name.substr(0, name.find(',')));
}

class Demuxer {
 public:
  Demuxer(MediaSource& source, std::span<const std::byte> file)
      : source_(source), deadline_(source.options.timeout), input_(file) {}
  ~Demuxer() { avformat_close_input(&format_); }
  Demuxer(const Demuxer&) = delete;
  Demuxer& operator=(const Demuxer&) = delete;

  absl::Status run() {
    TRAINKIT_RETURN_IF_ERROR(open());
    TRAINKIT_RETURN_IF_ERROR(choose_streams());
    return read_packets();
  }

 private:
  absl::Status open();
  absl::Status choose_streams();
  absl::Status read_packets();
  absl::Status take(FfmpegPtr<AVPacket> packet);
  absl::StatusOr<AVStream*> wanted_stream(std::optional<int> number, AVMediaType type) const;
  absl::Status failed(const std::string& problem, int code) const {
    if (code == AVERROR(ENOMEM)) return source_.limit_error();
    return deadline_.passed() ? source_.timeout_error() : source_.error(problem);
  }

  MediaSource& source_;
  Deadline deadline_;
  MemoryInput input_;
  AVFormatContext* format_ = nullptr;
};

absl::Status Demuxer::open() {
  format_ = input_.context() ? avformat_alloc_context() : nullptr;
  if (!format_) return absl::ResourceExhaustedError(source_.path + ": out of memory");
  format_->pb = input_.context();
  format_->io_open = refuse_to_open;
  format_->flags |= AVFMT_FLAG_CUSTOM_IO;
  format_->max_streams = source_.options.max_streams;
  format_->interrupt_callback = {.callback = is_too_late, .opaque = &deadline_};
  // Probe the content only: a playlist named *.mp4 must not be opened as a playlist or as a video.
  const AVInputFormat* kind = nullptr;
  if (av_probe_input_buffer2(format_->pb, &kind, "", nullptr, 0, 0) < 0 || !kind) {
    return source_.error("is not a video or audio file");
  }
  const auto& allowed = source_.options.formats;
  if (std::none_of(allowed.begin(), allowed.end(),
                   [&](auto& name) { return av_match_name(name.c_str(), kind->name); })) {
    return source_.error("container is not allowed", short_name(*kind), fmt::format("{}", fmt::join(allowed, ", ")));
  }
  source_.has_pts = short_name(*kind) != "avi";
  AVDictionary* settings = nullptr;
  av_dict_set(&settings, "format_whitelist", kind->name, 0);
  av_dict_set(&settings, "protocol_whitelist", "none", 0);
  source_.log.take();
  const int code = avformat_open_input(&format_, "", kind, &settings);
  av_dict_free(&settings);
  if (code < 0) return failed("has no header that can be read", code);
  if (format_->nb_streams > static_cast<unsigned>(source_.options.max_streams)) {
    return source_.error("has too many streams", std::to_string(format_->nb_streams),
                         fmt::format("at most {}", source_.options.max_streams));
  }
  return absl::OkStatus();
}

absl::StatusOr<AVStream*> Demuxer::wanted_stream(std::optional<int> number, AVMediaType type) const {
  AVStream* best = nullptr;
  const auto area = [](const AVStream* s) { return int64_t{s->codecpar->width} * s->codecpar->height; };
  for (unsigned i = 0; i < format_->nb_streams; ++i) {
    AVStream* stream = format_->streams[i];
    if (stream->codecpar->codec_type != type) continue;
    if (number ? stream->index == *number
               : !(stream->disposition & AV_DISPOSITION_ATTACHED_PIC) &&
                     (!best || (type == AVMEDIA_TYPE_VIDEO && area(stream) > area(best)))) {
      best = stream;
    }
  }
  if (number && !best) {
    return source_.error(
        fmt::format("stream {} of this file is not of type {}", *number, av_get_media_type_string(type)));
  }
  return best;
}

absl::Status Demuxer::choose_streams() {
  TRAINKIT_ASSIGN_OR_RETURN(AVStream * video, wanted_stream(source_.options.video_stream, AVMEDIA_TYPE_VIDEO));
  TRAINKIT_ASSIGN_OR_RETURN(AVStream * audio, wanted_stream(source_.options.audio_stream, AVMEDIA_TYPE_AUDIO));
  if (!video && !audio) return source_.error("holds neither video nor audio");
  for (unsigned i = 0; i < format_->nb_streams; ++i) {
    AVStream* stream = format_->streams[i];
    if (stream != video && stream != audio) {
      stream->discard = AVDISCARD_ALL;
      continue;
    }
    MediaStream& out = stream == video ? source_.video.emplace() : source_.audio.emplace();
    out.index = stream->index;
    out.codec = avcodec_get_name(stream->codecpar->codec_id);
    out.time_base = stream->time_base;
    if (out.time_base.num <= 0 || out.time_base.den <= 0) {
      return source_.error(fmt::format("stream {} has no time base", stream->index));
    }
    size_t bytes = 0;
    const uint8_t* matrix = stream_side_data(*stream, AV_PKT_DATA_DISPLAYMATRIX, bytes);
    if (matrix && bytes >= sizeof(int32_t) * 9) {
      std::memcpy(out.display_matrix.emplace().data(), matrix, sizeof(int32_t) * 9);
    }
    if (stream_side_data(*stream, AV_PKT_DATA_ENCRYPTION_INIT_INFO, bytes)) {
      return source_.error(fmt::format("stream {} is encrypted", stream->index));
    }
  }
  return absl::OkStatus();
}

absl::Status Demuxer::take(FfmpegPtr<AVPacket> packet) {
  MediaStream* stream = nullptr;
  for (auto* candidate : {&source_.video, &source_.audio}) {
    if (*candidate && (*candidate)->index == packet->stream_index) stream = &**candidate;
  }
  if (!stream || packet->size == 0) return absl::OkStatus();
  if (packet->flags & AV_PKT_FLAG_CORRUPT) {
    return source_.error(fmt::format("a packet of stream {} is damaged or cut", packet->stream_index));
  }
  if (av_packet_get_side_data(packet.get(), AV_PKT_DATA_ENCRYPTION_INFO, nullptr)) {
    return source_.error(fmt::format("stream {} is encrypted", packet->stream_index));
  }
  stream->packets.push_back(std::move(packet));
  return absl::OkStatus();
}

absl::Status Demuxer::read_packets() {
  source_.log.take();
  while (true) {
    FfmpegPtr<AVPacket> packet(av_packet_alloc());
    if (!packet) return absl::ResourceExhaustedError(source_.path + ": out of memory");
    const int code = av_read_frame(format_, packet.get());
    if (deadline_.passed()) return source_.timeout_error();
    if (code == AVERROR_EOF) break;
    if (code < 0) return failed("is damaged or cut", code);
    TRAINKIT_RETURN_IF_ERROR(take(std::move(packet)));
  }
  for (const auto* stream : {&source_.video, &source_.audio}) {
    if (!*stream) continue;
    // The demuxer may have filled in more than the header had.
    const AVCodecParameters* parameters = format_->streams[(*stream)->index]->codecpar;
    auto& copy = const_cast<MediaStream&>(**stream).parameters;
    copy.reset(avcodec_parameters_alloc());
    if (!copy || avcodec_parameters_copy(copy.get(), parameters) < 0) {
      return absl::ResourceExhaustedError(source_.path + ": out of memory");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status demux(MediaSource& source) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto file, MappedFile::open(source.path));
  const auto bytes = file->bytes();
  if (bytes.empty()) return source.error("is empty");
  if (std::ssize(bytes) > source.options.max_file_bytes) {
    return source.error("is too large", fmt::format("{} bytes", bytes.size()),
                        fmt::format("at most {}", source.options.max_file_bytes));
  }
  if (const absl::Status layout = check_media_layout(bytes); !layout.ok()) {
    return source.error(std::string(layout.message()));
  }
  const FfmpegLog::Scope scope(source.log);
  absl::Status status = Demuxer(source, bytes).run();
  TRAINKIT_RETURN_IF_ERROR(file->check());
  return status;
}

}  // namespace trainkit::detail
