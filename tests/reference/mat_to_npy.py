"""Writes each array of a .mat file (first argument) as a NumPy file of its name into a folder (second argument)."""

import sys

import h5py
import numpy as np
import scipy.io

path, folder = sys.argv[1:]
with open(path, "rb") as file:
    is_hdf5 = b"MATLAB 7.3" in file.read(116) or file.seek(512) == 512 and file.read(4) == b"\x89HDF"
if is_hdf5:
    with h5py.File(path) as file:
        for name, dataset in file.items():
            np.save(f"{folder}/{name}.npy", np.ascontiguousarray(dataset[()].T))
else:
    for name, array in scipy.io.loadmat(path, mat_dtype=True).items():
        if not name.startswith("__"):
            np.save(f"{folder}/{name}.npy", np.ascontiguousarray(array))
