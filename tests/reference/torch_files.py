"""PyTorch files for tests, and PyTorch's contents of files.

usage: torch_files.py make FOLDER            writes files of every kind into FOLDER
       torch_files.py dump OUT FILE...       reads each FILE by torch.load(weights_only=True)

`dump` writes OUT.txt: for each file a line "file PATH", then "tensor NAME DTYPE SIZES STRIDES GROUP" for each tensor
(tab-separated; GROUP numbers storages in order of appearance, -1 for an empty tensor and for a bare storage) and
"value NAME TEXT" for other values, or "refused EXCEPTION"; and OUT.bin: the values of all tensors, row-major, one after
the other.
"""
import io
import os
import sys
import warnings
import zipfile

import torch

warnings.filterwarnings("ignore")
Storage = (torch.storage.TypedStorage, torch.UntypedStorage)


def state_dict():
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.Linear(4, 2))
    return model.state_dict()


def every_dtype():
    names = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
             "complex128", "complex32", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
             "float8_e5m2fnuz", "float8_e8m0fnu"]
    return {name: torch.randint(0, 100, (3, 5)).to(getattr(torch, name)) for name in names}


def views():
    base = torch.arange(24.0).view(4, 6)
    weight = torch.randn(5, 3)
    return {"turned": base.t(), "strided": base[:, ::2], "row": base[2], "scalar": torch.tensor(1.5), "none": torch.empty(0, 7),
            "expanded": torch.ones(1).expand(5), "tied.a": weight, "tied.b": weight, "part": weight[1:3],
            "conj": torch.randn(3, dtype=torch.cfloat).conj(), "imag": torch.randn(3, dtype=torch.cfloat).conj().imag,
            "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)}


def checkpoint():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return {"epoch": 3, "best": 0.25, "name": "näme", "done": False, "nothing": None, "big": 1 << 100, "size": torch.Size([2, 3]),
            "dtype": torch.bfloat16, "model": model.state_dict(), "optimizer": optimizer.state_dict(),
            "history": [1.5, -2, (3, -40000, 1 << 40)], "parameter": model.weight}


def make(folder):
    torch.manual_seed(0)
    samples = {"state_dict": state_dict(), "views": views(), "checkpoint": checkpoint(), "tensor": torch.arange(5),
               "list": [torch.ones(2), (torch.zeros(1), {"a": torch.ones(3)})], "empty": {}}
    for name, value in samples.items():
        torch.save(value, f"{folder}/{name}.zip.pt")
        torch.save(value, f"{folder}/{name}.legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(every_dtype(), f"{folder}/dtypes.zip.pt")
    classic = {name: tensor for name, tensor in every_dtype().items() if not name.startswith(("u", "float8", "complex32"))}
    torch.save(classic, f"{folder}/dtypes.legacy.pt", _use_new_zipfile_serialization=False)
    torch.serialization.set_crc32_options(False)
    torch.save(samples["checkpoint"], f"{folder}/no_crc.zip.pt")
    torch.serialization.set_crc32_options(True)
    big_endian(classic, f"{folder}/big_endian.zip.pt")
    for protocol in (3, 4, 5):  # which weights_only does not read
        torch.save(samples["checkpoint"], f"{folder}/protocol{protocol}.any.pt", pickle_protocol=protocol)
        torch.save(samples["checkpoint"], f"{folder}/protocol{protocol}.legacy.any.pt", pickle_protocol=protocol,
                   _use_new_zipfile_serialization=False)


def big_endian(tensors, path):
    """The output of torch.save on a big-endian machine."""
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    keys = {}
    for number, tensor in enumerate(tensors.values()):
        keys[f"archive/data/{number}"] = tensor.element_size() // (2 if tensor.is_complex() else 1)
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename == "archive/byteorder":
                data = b"big"
            size = keys.get(info.filename, 1)
            new.writestr(info.filename, b"".join(data[i:i + size][::-1] for i in range(0, len(data), size)))


def flatten(value, name=""):
    if isinstance(value, (torch.Tensor, *Storage)):
        yield name, value
    elif isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from flatten(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def dump(out, files):
    with open(out + ".txt", "w", encoding="utf-8") as text, open(out + ".bin", "wb") as data:
        for path in files:
            text.write(f"file\t{path}\n")
            try:
                value = torch.load(path, map_location="cpu", weights_only=not path.endswith(".any.pt"))
            except Exception as error:
                text.write(f"refused\t{type(error).__name__}\n")
                continue
            groups = {}
            for name, item in flatten(value):
                if not isinstance(item, (torch.Tensor, *Storage)):
                    text.write(f"value\t{name}\t{item}\n")
                    continue
                alone = isinstance(item, Storage)
                item = torch.tensor([], dtype=item.dtype).set_(item) if alone else item
                has_group = item.numel() and not alone
                group = groups.setdefault(item.untyped_storage().data_ptr(), len(groups)) if has_group else -1
                join = lambda numbers: ",".join(map(str, numbers))
                text.write(f"tensor\t{name}\t{str(item.dtype)[6:]}\t{join(item.shape)}\t{join(item.stride())}\t{group}\n")
                plain = item.detach().resolve_conj().resolve_neg().contiguous()
                if plain.numel():
                    data.write(plain.reshape(-1).view(torch.uint8).numpy().tobytes())


if __name__ == "__main__":
    if sys.argv[1] == "make":
        os.makedirs(sys.argv[2], exist_ok=True)
        make(sys.argv[2])
    else:
        dump(sys.argv[2], sys.argv[3:])
