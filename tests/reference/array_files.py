"""Writes the same arrays as NumPy archives and HDF5 files, and each as a NumPy file, into a folder.

The NumPy file of "group/name" is group.name.npy.
"""

import sys

import h5py
import numpy as np

folder = sys.argv[1]
random = np.random.default_rng(2)
arrays = {
    "cube": random.integers(0, 60000, (13, 11, 7)).astype(np.uint16),
    "wide": random.random((2, 70)),
    "columns": np.asfortranarray(random.random((6, 5)).astype(np.float32)),
    "half": random.random((5,)).astype(np.float16),
    "mask": random.random((3, 4)) < 0.5,
    "labels": random.integers(-5, 5, (3, 4, 2)).astype(np.int8),
    "large": np.array([[2**62 + 1, -(2**53) - 1]], dtype=np.int64),
    "empty": np.zeros((0, 3), dtype=np.float32),
    "number": np.float64(2.5),
}
for name, array in arrays.items():
    np.save(f"{folder}/{name}.npy", array)
np.savez(f"{folder}/stored.npz", **arrays)
np.savez_compressed(f"{folder}/deflated.npz", **arrays)

filters = {
    "contiguous": {},
    "chunked": {"chunks": True},
    "gzip": {"chunks": True, "compression": "gzip"},
    "shuffled": {"chunks": True, "compression": "gzip", "shuffle": True},
}
for version in ("earliest", "v110"):
    for kind, options in filters.items():
        with h5py.File(f"{folder}/{kind}_{version}.h5", "w", libver=version) as file:
            for name, array in arrays.items():
                has_rows = array.ndim > 0 and array.size > 0
                file.create_dataset(name, data=array, **(options if has_rows else {}))
            file.create_dataset("scene/part/big", data=arrays["cube"].astype(">u2"), **options)
            file.create_dataset("scene/text", data="words")
            file["other"] = h5py.SoftLink("/cube")
            file.attrs["wavelength"] = np.array([400.5, 410.0, 420.0])
            file["cube"].attrs["gain"] = np.int16(3)
np.save(f"{folder}/scene.part.big.npy", arrays["cube"])
with h5py.File(f"{folder}/after_512.h5", "w", userblock_size=512) as file:
    file["cube"] = arrays["cube"]
