"""The work of BM_DecodedCache with TurboLoader: images of 224 x 224 that it decodes and caches in memory, batches of
64, two workers. Its smallest output type is float32."""

import io
import json
import os
import tarfile
import tempfile
import time

import numpy as np

try:
    import turboloader
    from PIL import Image
except ImportError as error:
    raise SystemExit(f"skipped: {error}")

SECONDS = 0.2 if os.environ.get("TRAINKIT_BENCH_QUICK") else 5.0
PICTURES, BATCH = 512, 64

with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "pictures.tar")
    with tarfile.open(path, "w") as tar:
        for k in range(PICTURES):
            generator = np.random.default_rng(k)
            small = Image.fromarray(generator.integers(0, 256, (24, 32, 3), dtype=np.uint8))
            data = io.BytesIO()
            small.resize((500, 375), Image.BICUBIC).save(data, "jpeg", quality=90)
            entry = tarfile.TarInfo(f"{k}.jpg")
            entry.size = data.tell()
            data.seek(0)
            tar.addfile(entry, data)
    loader = turboloader.DataLoader(path, batch_size=BATCH, image_size=224, output_format="numpy", shuffle=True, drop_last=True,
                                    num_workers=2, cache_decoded=True)

    def batches():
        epoch = 0
        while True:
            loader.set_epoch(epoch)
            for pictures, _ in loader:
                yield pictures
            epoch += 1

    source = batches()
    for _ in range(2 * PICTURES // BATCH):  # the first epoch decodes
        next(source)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        count += len(next(source))
    print(json.dumps({"name": "turboloader", "value": count / (time.perf_counter() - start), "unit": "pictures/s"}))
