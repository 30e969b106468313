"""Mutated safetensors files and the reference's result for each.

usage: safetensors_verdicts.py OUT COUNT SEED

Writes records: u8 verdict (1 accepted, 0 refused), u32 length, the file's bytes.
"""
import json
import random
import struct
import sys

import safetensors

NUMBERS = ["0", "1", "2", "3", "4", "8", "12", "-1", "-0", "1.0", "1e2", "01", "4294967296", "9223372036854775807",
           "9223372036854775808", "18446744073709551615", "18446744073709551616", "true", "null", '"4"', "[]", "{}", ""]
WORDS = ['"dtype"', '"shape"', '"data_offsets"', '"__metadata__"', '"F32"', '"F64"', '"U8"', '"BOOL"', '"F4"', '"F6_E2M3"',
         '"F8_E8M0"', '"I64"', '"BF16"', '"C64"', '"f32"', '"a"', '"b"', '"extra"', "{", "}", "[", "]", ",", ":", " ", "\n"]


def file_of(header, data):
    return struct.pack("<Q", len(header)) + header + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def seeds():
    yield {"a": tensor("F32", [1], 0, 4)}, 4
    yield {"a": tensor("F32", [2, 2], 0, 16), "b": tensor("U8", [3], 16, 19)}, 19
    yield {"__metadata__": {"format": "pt", "x": ""}, "a": tensor("I64", [], 0, 8), "b": tensor("F16", [0, 4], 8, 8)}, 8
    yield {"a": tensor("F4", [4], 0, 2), "b": tensor("F6_E2M3", [4], 2, 5), "c": tensor("BOOL", [1], 5, 6)}, 6
    yield {}, 0


def mutate_text(text, rng):
    kind = rng.randrange(6)
    digits = [i for i, c in enumerate(text) if c.isdigit()]
    if kind == 0 and digits:
        at = rng.choice(digits)
        return text[:at] + rng.choice(NUMBERS) + text[at + 1:]
    at = rng.randrange(len(text) + 1)
    if kind == 1:
        return text[:at] + rng.choice(WORDS) + text[at:]
    if kind == 2:
        return text[:at] + text[min(len(text), at + rng.randrange(1, 8)):]
    if kind == 3:
        end = min(len(text), at + rng.randrange(1, 40))
        to = rng.randrange(len(text) + 1)
        return text[:to] + text[at:end] + text[to:]
    if kind == 4:
        words = [w for w in WORDS if w in text]
        return text.replace(rng.choice(words), rng.choice(WORDS), 1) if words else text
    return text[:at] + chr(rng.randrange(1, 0x250)) + text[at + 1:]


def mutants(count, seed):
    rng = random.Random(seed)
    plain = list(seeds())
    for _ in range(count):
        header, size = rng.choice(plain)
        text = json.dumps(header, separators=(",", ":") if rng.random() < 0.5 else None)
        for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
            text = mutate_text(text, rng)
        raw = bytearray(text.encode())
        if raw and rng.random() < 0.1:
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        size += rng.choice((0,) * 12 + (-1, 1, 4))
        data = bytearray(file_of(bytes(raw), b"\1" * max(size, 0)))
        if rng.random() < 0.05:
            data[rng.randrange(8)] = rng.randrange(256)
        if rng.random() < 0.03:
            del data[rng.randrange(len(data)):]
        yield bytes(data)


def verdict(data):
    try:
        safetensors.deserialize(data)
    except Exception:
        return 0
    return 1


def main():
    out, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with open(out, "wb") as file:
        for data in mutants(count, seed):
            file.write(struct.pack("<BI", verdict(data), len(data)) + data)


if __name__ == "__main__":
    main()
