"""The work of BM_Clips with torchcodec in two threads, as in SPDL and many hand-written loaders: the same frames,
scaled by the decoder or by torch, whichever is faster, and torchaudio's log-mel. Reads the files that bench_media
wrote."""

import json
import os
import pathlib
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torchaudio
from torchcodec.decoders import AudioDecoder, VideoDecoder

torch.set_num_threads(1)
SECONDS = 0.1 if os.environ.get("TRAINKIT_BENCH_QUICK") else 9.0
FOLDER = pathlib.Path(tempfile.gettempdir()) / "trainkit-bench-media-1"
CLIPS = sorted(FOLDER.glob("*.mp4"))
if not CLIPS:
    raise SystemExit(f"no clips in {FOLDER}: run bench_media first")
INDICES = [9 * i + 4 for i in range(8)]
MEL = torchaudio.transforms.MelSpectrogram(16000, 400, hop_length=160, n_mels=64)


def sound(path):
    samples = AudioDecoder(path, sample_rate=16000, num_channels=1).get_all_samples().data[:, :48000]
    return MEL(samples).clamp_min(1e-6).log()


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
