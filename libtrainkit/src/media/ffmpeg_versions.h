#pragma once
// What differs between the versions of FFmpeg, 5.1 to 7. No other file depends on the version.

#include "media/ffmpeg_functions.h"

namespace trainkit::detail {

#if LIBAVFORMAT_VERSION_MAJOR >= 61
TRAINKIT_LATE_FUNCTION(avcodec, av_packet_side_data_get);
TRAINKIT_LATE_FUNCTION(avcodec, av_packet_side_data_new);

/// Returns the side data of a stream, null if it has none, and sets `bytes` to its size.
inline const uint8_t* stream_side_data(const AVStream& stream, AVPacketSideDataType type, size_t& bytes) {
  const AVCodecParameters& codec = *stream.codecpar;
  const AVPacketSideData* data = av_packet_side_data_get(codec.coded_side_data, codec.nb_coded_side_data, type);
  bytes = data ? data->size : 0;
  return data ? data->data : nullptr;
}

/// Adds side data of `bytes` bytes to a stream. Returns null if there is no memory.
inline uint8_t* add_stream_side_data(AVStream& stream, AVPacketSideDataType type, size_t bytes) {
  AVCodecParameters& codec = *stream.codecpar;
  AVPacketSideData* data = av_packet_side_data_new(&codec.coded_side_data, &codec.nb_coded_side_data, type, bytes, 0);
  return data ? data->data : nullptr;
}

/// Duration of a frame in the time base of its stream, 0 if unknown.
inline int64_t frame_duration(const AVFrame& frame) { return frame.duration; }
#else
TRAINKIT_LATE_FUNCTION(avformat, av_stream_get_side_data);
TRAINKIT_LATE_FUNCTION(avformat, av_stream_new_side_data);

/// Returns the side data of a stream, null if it has none, and sets `bytes` to its size.
inline const uint8_t* stream_side_data(const AVStream& stream, AVPacketSideDataType type, size_t& bytes) {
  bytes = 0;
  return av_stream_get_side_data(&stream, type, &bytes);
}

/// Adds side data of `bytes` bytes to a stream. Returns null if there is no memory.
inline uint8_t* add_stream_side_data(AVStream& stream, AVPacketSideDataType type, size_t bytes) {
  return av_stream_new_side_data(&stream, type, bytes);
}

/// Duration of a frame in the time base of its stream, 0 if unknown.
inline int64_t frame_duration(const AVFrame& frame) { return frame.pkt_duration; }
#endif

}  // namespace trainkit::detail
