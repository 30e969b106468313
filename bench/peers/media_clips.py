"""The work of BM_Clips with torchcodec in two threads, as in SPDL and many hand-written loaders: the same frames,
scaled by the decoder or by torch, whichever is faster, and the log-mel by the operations of torchaudio's
MelSpectrogram, which has no release for torch after 2.11. Reads the files that bench_media wrote."""

import json
import math
import os
import pathlib
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torchcodec.decoders import AudioDecoder, VideoDecoder

torch.set_num_threads(1)
SECONDS = 0.1 if os.environ.get("TRAINKIT_BENCH_QUICK") else 9.0
FOLDER = pathlib.Path(tempfile.gettempdir()) / "trainkit-bench-media-1"
CLIPS = sorted(FOLDER.glob("*.mp4"))
if not CLIPS:
    raise SystemExit(f"no clips in {FOLDER}: run bench_media first")
INDICES = [9 * i + 4 for i in range(8)]
WINDOW = torch.hann_window(400)


def mel_filters(bands=64, rate=16000, frequencies=201):
    """The filters' weights (frequencies, bands) of torchaudio.functional.melscale_fbanks."""
    highest = 2595 * math.log10(1 + rate / 2 / 700)
    points = 700 * (10 ** (torch.linspace(0, highest, bands + 2) / 2595) - 1)
    slopes = points - torch.linspace(0, rate // 2, frequencies)[:, None]
    widths = points[1:] - points[:-1]
    return torch.minimum(-slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]).clamp_min(0)


FILTERS = mel_filters()


def sound(path):
    samples = AudioDecoder(path, sample_rate=16000, num_channels=1).get_all_samples().data[:, :48000]
    spectrum = torch.stft(samples, 400, 160, window=WINDOW, return_complex=True).abs().square()
    return (spectrum.transpose(-1, -2) @ FILTERS).transpose(-1, -2).clamp_min(1e-6).log()


def scaled_by_torch(path):
    frames = VideoDecoder(path, num_ffmpeg_threads=1, seek_mode="approximate", dimension_order="NHWC").get_frames_at(INDICES).data
    frames = frames.permute(0, 3, 1, 2)
    return torch.nn.functional.interpolate(frames, (224, 224), mode="bilinear", antialias=True), sound(path)


def scaled_by_decoder(path):
    from torchcodec.transforms import Resize
    decoder = VideoDecoder(path, num_ffmpeg_threads=1, seek_mode="approximate", transforms=[Resize((224, 224))])
    return decoder.get_frames_at(INDICES).data, sound(path)


def clips_a_second(work):
    with ThreadPoolExecutor(2) as crew:
        list(crew.map(work, [str(path) for path in CLIPS[:2]]))
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < SECONDS:
            done = list(crew.map(work, [str(CLIPS[(count + i) % len(CLIPS)]) for i in range(8)]))
            count += len(done)
        return count / (time.perf_counter() - start)


for name, work in (("torchcodec_scaled_by_torch", scaled_by_torch), ("torchcodec_scaled_by_decoder", scaled_by_decoder)):
    print(json.dumps({"name": name, "value": clips_a_second(work), "unit": "clips/s"}))
