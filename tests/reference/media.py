"""Reads a file with torchcodec, as the reference of media/media.h.

usage: media.py FILE OUT.safetensors [--video STREAM] [--audio STREAM] [--frames I,J,...]

OUT has "frames" (N, 3, H, W), "pts_seconds" and "duration_seconds" of the requested frames, "num_frames"; "sound" in
the file's format and "mono" at 16 kHz, the mean of the channels, "sound_pts". Missing streams are omitted.
"""
import argparse

import torch
from safetensors.torch import save_file
from torchcodec.decoders import AudioDecoder, VideoDecoder
from torchcodec.encoders import AudioEncoder


def resampled(file, stream, sound):
    """All samples at 16 kHz. torchcodec 0.17 leaves out frames at the start from which its resampler makes no sample yet,
    such as the short first frame of Vorbis. It gets these samples again as a WAV file, whose frames are long."""
    samples = AudioDecoder(file, stream_index=stream, sample_rate=16000).get_all_samples()
    if samples.pts_seconds > sound.pts_seconds + 1 / 16000:
        wav = AudioEncoder(sound.data, sample_rate=sound.sample_rate).to_tensor(format="wav")
        samples = AudioDecoder(wav, sample_rate=16000).get_all_samples()
    return samples.data


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("out")
    parser.add_argument("--video", type=int)
    parser.add_argument("--audio", type=int)
    parser.add_argument("--frames", default="")
    options = parser.parse_args()
    out = {}
    if options.frames:
        video = VideoDecoder(options.file, stream_index=options.video)
        batch = video.get_frames_at([int(i) for i in options.frames.split(",")])
        out |= {"frames": batch.data, "pts_seconds": batch.pts_seconds, "duration_seconds": batch.duration_seconds,
                "num_frames": torch.tensor(len(video))}
    if options.audio is not None:
        sound = AudioDecoder(options.file, stream_index=options.audio).get_all_samples()
        mono = resampled(options.file, options.audio, sound).mean(0, keepdim=True)
        out |= {"sound": sound.data, "mono": mono, "sound_pts": torch.tensor(sound.pts_seconds, dtype=torch.float64)}
    save_file({name: tensor.contiguous() for name, tensor in out.items()}, options.out)


main()
