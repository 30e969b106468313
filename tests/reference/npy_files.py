"""Writes NumPy files of every dtype with the numbers 0 .. 29 to the given folder, and some invalid ones."""

import sys

import numpy as np

folder = sys.argv[1]
numbers = np.arange(30).reshape(5, 3, 2)
for name in ("bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64 complex64 complex128").split():
    np.save(f"{folder}/{name}.npy", numbers.astype(name))
np.save(f"{folder}/line.npy", np.arange(7, dtype=np.int64))
np.save(f"{folder}/fortran.npy", np.asfortranarray(numbers))
np.save(f"{folder}/record.npy", np.zeros(3, dtype=[("a", "<f4"), ("b", "<i8")]))
np.save(f"{folder}/object.npy", np.array([{}, None], dtype=object))
np.save(f"{folder}/big_endian.npy", numbers.astype(">i4"))
np.save(f"{folder}/scalar.npy", np.float32(3))
np.save(f"{folder}/text.npy", np.array(["a", "bc"]))
