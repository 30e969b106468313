"""Writes .mat files in four forms, and each array that we should read as a NumPy file of its name, into a folder.

plain.mat and compressed.mat as SciPy writes them; big_endian.mat, which SciPy cannot write, converted from plain.mat;
hdf5.mat in the layout of MATLAB 7.3, by h5py.
"""

import struct
import sys

import h5py
import numpy as np
import scipy.io
import scipy.sparse

folder = sys.argv[1]
random = np.random.default_rng(1)
arrays = {
    "cube": random.integers(0, 60000, (3, 4, 5)).astype(np.uint16),
    "wide": random.random((2, 7)),
    "single": random.random((6, 1)).astype(np.float32),
    "labels": random.integers(-5, 5, (3, 4)).astype(np.int8),
    "large": np.array([[2**62 + 1, -(2**53) - 1]], dtype=np.int64),
}
others = {
    "words": "some text",
    "complex": np.array([[1 + 2j]]),
    "structure": {"a": 1.0},
    "cells": np.array([[1.0, "x"]], dtype=object),
    "thin": scipy.sparse.csc_matrix(np.eye(3)),
}
for name, array in arrays.items():
    np.save(f"{folder}/{name}.npy", array)
for name, compressed in (("plain", False), ("compressed", True)):
    scipy.io.savemat(f"{folder}/{name}.mat", arrays | others, do_compression=compressed)


def tag(kind, data):
    return struct.pack(">II", kind, len(data)) + data + bytes(-len(data) % 8)


classes = {"uint16": (11, 4), "float64": (6, 9), "float32": (7, 7), "int8": (8, 1), "int64": (14, 12)}
with open(f"{folder}/big_endian.mat", "wb") as file:
    file.write(b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack(">H", 0x0100) + b"MI")
    for name, array in arrays.items():
        number, kind = classes[str(array.dtype)]
        data = array.astype(array.dtype.newbyteorder(">")).tobytes(order="F")
        sizes = struct.pack(f">{array.ndim}i", *array.shape)
        flags = struct.pack(">II", number, 0)
        file.write(tag(14, tag(6, flags) + tag(5, sizes) + tag(1, name.encode()) + tag(kind, data)))

matlab = {"uint16": "uint16", "float64": "double", "float32": "single", "int8": "int8", "int64": "int64"}
with h5py.File(f"{folder}/hdf5.mat", "w", userblock_size=512) as file:
    for name, array in arrays.items():
        dataset = file.create_dataset(name, data=array.T, chunks=True, compression="gzip", shuffle=name == "cube")
        dataset.attrs["MATLAB_class"] = np.bytes_(matlab[str(array.dtype)])
    file.create_group("structure").attrs["MATLAB_class"] = np.bytes_("struct")
with open(f"{folder}/hdf5.mat", "r+b") as file:
    file.write(b"MATLAB 7.3 MAT-file".ljust(124) + struct.pack("<H", 0x0200) + b"IM")
