"""Runs programs of tests/differential with PyTorch: python oracle < requests > answers.

A message is a length (8 bytes), a JSON header of that length, and the bytes of its tensors. A request has the program
({"spec": ..., "order": ..., "tensors": [[name, dtype, shape], ...]}), an answer is the list of tensors of the record.
"""
import json
import struct
import sys
import warnings

import numpy
import torch

from export import export
from loops import StepLoop, TrainerLoop

warnings.simplefilter("ignore")
torch.set_num_threads(1)


def read_exactly(size):
    data = sys.stdin.buffer.read(size)
    if len(data) < size:
        sys.exit(0)
    return data


def read_message():
    header = json.loads(read_exactly(struct.unpack("<Q", read_exactly(8))[0]))
    tensors = {}
    for name, dtype, shape in header["tensors"]:
        array = numpy.dtype(dtype)
        data = bytearray(read_exactly(int(numpy.prod(shape, dtype=numpy.int64)) * array.itemsize))
        values = numpy.frombuffer(data, dtype=array) if data else numpy.zeros(0, dtype=array)
        tensors[name] = torch.from_numpy(values).view(shape)
    return header, tensors


def write_message(out, record):
    arrays = []
    for name, value in record.items():
        tensor = value.detach() if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float64)
        arrays.append((name, numpy.ascontiguousarray(tensor.numpy()), list(tensor.shape)))
    header = json.dumps([[name, str(array.dtype), shape] for name, array, shape in arrays]).encode()
    out.write(struct.pack("<Q", len(header)) + header)
    for _, array, _ in arrays:
        out.write(array.tobytes())
    out.flush()


def main():
    out = sys.stdout.buffer
    sys.stdout = sys.stderr
    while True:
        header, tensors = read_message()
        try:
            if "export" in header:
                record = export(header["spec"], tensors, header["export"])
            else:
                loop = StepLoop if header["spec"]["loop"] == "step" else TrainerLoop
                record = loop(header["spec"], tensors, header["order"]).run()
        except Exception as error:  # the library may refuse the program too
            record = {f"error/{type(error).__name__}: {error}": 1.0}
        write_message(out, record)


if __name__ == "__main__":
    main()
