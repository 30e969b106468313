#pragma once
// The functions of FFmpeg, which is loaded when the first media file is opened. See Note [Late libraries] in
// core/machine/late_library.h.

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/avstring.h>
#include <libavutil/display.h>
#include <libavutil/opt.h>
#include <libswresample/swresample.h>
#include <libswscale/swscale.h>
}

#include "core/machine/late_library.h"

namespace trainkit::detail {

#define TRAINKIT_FFMPEG(name, version)                                                                                \
  inline constinit LateLibrary name {                                                                                 \
    "lib" #name ".so." AV_STRINGIFY(version), "FFmpeg", "lib" #name AV_STRINGIFY(version), TRAINKIT_CARRIED("ffmpeg") \
  }
TRAINKIT_FFMPEG(avformat, LIBAVFORMAT_VERSION_MAJOR);
TRAINKIT_FFMPEG(avcodec, LIBAVCODEC_VERSION_MAJOR);
TRAINKIT_FFMPEG(swscale, LIBSWSCALE_VERSION_MAJOR);
TRAINKIT_FFMPEG(swresample, LIBSWRESAMPLE_VERSION_MAJOR);
TRAINKIT_FFMPEG(avutil, LIBAVUTIL_VERSION_MAJOR);
#undef TRAINKIT_FFMPEG

TRAINKIT_LATE_FUNCTION(avformat, av_interleaved_write_frame);
TRAINKIT_LATE_FUNCTION(avformat, av_probe_input_buffer2);
TRAINKIT_LATE_FUNCTION(avformat, av_read_frame);
TRAINKIT_LATE_FUNCTION(avformat, av_write_trailer);
TRAINKIT_LATE_FUNCTION(avformat, avformat_alloc_context);
TRAINKIT_LATE_FUNCTION(avformat, avformat_alloc_output_context2);
TRAINKIT_LATE_FUNCTION(avformat, avformat_close_input);
TRAINKIT_LATE_FUNCTION(avformat, avformat_free_context);
TRAINKIT_LATE_FUNCTION(avformat, avformat_new_stream);
TRAINKIT_LATE_FUNCTION(avformat, avformat_open_input);
TRAINKIT_LATE_FUNCTION(avformat, avformat_version);
TRAINKIT_LATE_FUNCTION(avformat, avformat_write_header);
TRAINKIT_LATE_FUNCTION(avformat, avio_alloc_context);
TRAINKIT_LATE_FUNCTION(avformat, avio_close_dyn_buf);
TRAINKIT_LATE_FUNCTION(avformat, avio_context_free);
TRAINKIT_LATE_FUNCTION(avformat, avio_open_dyn_buf);

TRAINKIT_LATE_FUNCTION(avcodec, av_packet_alloc);
TRAINKIT_LATE_FUNCTION(avcodec, av_packet_free);
TRAINKIT_LATE_FUNCTION(avcodec, av_packet_get_side_data);
TRAINKIT_LATE_FUNCTION(avcodec, av_packet_rescale_ts);
TRAINKIT_LATE_FUNCTION(avcodec, avcodec_alloc_context3);
TRAINKIT_LATE_FUNCTION(avcodec, avcodec_find_decoder);
TRAINKIT_LATE_FUNCTION(avcodec, avcodec_find_encoder_by_name);
TRAINKIT_LATE_FUNCTION(avcodec, avcodec_flush_buffers);
TRAINKIT_LATE_FUNCTION(avcodec, avcodec_free_context);
TRAINKIT_LATE_FUNCTION(avcodec, avcodec_get_class);
TRAINKIT_LATE_FUNCTION(avcodec, avcodec_get_name);
TRAINKIT_LATE_FUNCTION(avcodec, avcodec_open2);
TRAINKIT_LATE_FUNCTION(avcodec, avcodec_parameters_alloc);
TRAINKIT_LATE_FUNCTION(avcodec, avcodec_parameters_copy);
TRAINKIT_LATE_FUNCTION(avcodec, avcodec_parameters_free);
TRAINKIT_LATE_FUNCTION(avcodec, avcodec_parameters_from_context);
TRAINKIT_LATE_FUNCTION(avcodec, avcodec_parameters_to_context);
TRAINKIT_LATE_FUNCTION(avcodec, avcodec_receive_frame);
TRAINKIT_LATE_FUNCTION(avcodec, avcodec_receive_packet);
TRAINKIT_LATE_FUNCTION(avcodec, avcodec_send_frame);
TRAINKIT_LATE_FUNCTION(avcodec, avcodec_send_packet);
TRAINKIT_LATE_FUNCTION(avcodec, avcodec_version);

TRAINKIT_LATE_FUNCTION(swscale, sws_freeContext);
TRAINKIT_LATE_FUNCTION(swscale, sws_getCachedContext);
TRAINKIT_LATE_FUNCTION(swscale, sws_getCoefficients);
TRAINKIT_LATE_FUNCTION(swscale, sws_getColorspaceDetails);
TRAINKIT_LATE_FUNCTION(swscale, sws_getContext);
TRAINKIT_LATE_FUNCTION(swscale, sws_scale);
TRAINKIT_LATE_FUNCTION(swscale, sws_setColorspaceDetails);
TRAINKIT_LATE_FUNCTION(swscale, swscale_version);

TRAINKIT_LATE_FUNCTION(swresample, swr_alloc_set_opts2);
TRAINKIT_LATE_FUNCTION(swresample, swr_convert);
TRAINKIT_LATE_FUNCTION(swresample, swr_free);
TRAINKIT_LATE_FUNCTION(swresample, swr_get_delay);
TRAINKIT_LATE_FUNCTION(swresample, swr_init);
TRAINKIT_LATE_FUNCTION(swresample, swr_set_matrix);
TRAINKIT_LATE_FUNCTION(swresample, swresample_version);

TRAINKIT_LATE_FUNCTION(avutil, av_channel_layout_copy);
TRAINKIT_LATE_FUNCTION(avutil, av_channel_layout_default);
TRAINKIT_LATE_FUNCTION(avutil, av_channel_layout_uninit);
TRAINKIT_LATE_FUNCTION(avutil, av_d2q);
TRAINKIT_LATE_FUNCTION(avutil, av_dict_free);
TRAINKIT_LATE_FUNCTION(avutil, av_dict_set);
TRAINKIT_LATE_FUNCTION(avutil, av_display_rotation_set);
TRAINKIT_LATE_FUNCTION(avutil, av_frame_alloc);
TRAINKIT_LATE_FUNCTION(avutil, av_frame_free);
TRAINKIT_LATE_FUNCTION(avutil, av_frame_get_buffer);
TRAINKIT_LATE_FUNCTION(avutil, av_frame_make_writable);
TRAINKIT_LATE_FUNCTION(avutil, av_free);
TRAINKIT_LATE_FUNCTION(avutil, av_freep);
TRAINKIT_LATE_FUNCTION(avutil, av_get_media_type_string);
TRAINKIT_LATE_FUNCTION(avutil, av_log_default_callback);
TRAINKIT_LATE_FUNCTION(avutil, av_log_set_callback);
TRAINKIT_LATE_FUNCTION(avutil, av_malloc);
TRAINKIT_LATE_FUNCTION(avutil, av_match_name);
TRAINKIT_LATE_FUNCTION(avutil, av_max_alloc);
TRAINKIT_LATE_FUNCTION(avutil, av_opt_set);
TRAINKIT_LATE_FUNCTION(avutil, av_opt_set_double);
TRAINKIT_LATE_FUNCTION(avutil, av_opt_set_int);
TRAINKIT_LATE_FUNCTION(avutil, av_opt_set_sample_fmt);
TRAINKIT_LATE_FUNCTION(avutil, av_rescale_rnd);
TRAINKIT_LATE_FUNCTION(avutil, av_strerror);

}  // namespace trainkit::detail
