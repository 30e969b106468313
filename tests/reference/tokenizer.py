"""tiktoken's tokens of texts, as the reference of text/tokenizer.h.

    python tokenizer.py ENCODER.json VOCAB.bpe TEXTS... OUT

Builds tiktoken's "gpt2" encoding from the two files and encodes every text of the folders TEXTS and some difficult ones
created here. For text number i writes OUT/<i>.txt, OUT/<i>.ordinary and OUT/<i>.special (uint32 ids, <|endoftext|> as
text and as a token), and OUT/count.
"""
import pathlib
import random
import sys

import numpy as np
import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks
from tiktoken_ext.openai_public import r50k_pat_str

encoder, merges, *folders, out = sys.argv[1:]
end = {"<|endoftext|>": 50256}
ranks = data_gym_to_mergeable_bpe_ranks(vocab_bpe_file=merges, encoder_json_file=encoder)
encoding = tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens=end)

texts = [p.read_bytes().decode("utf-8") for f in folders for p in sorted(pathlib.Path(f).iterdir())]
every = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
texts.append("".join(every))  # every code point once, next to others of its class
texts.append("x".join(every[::7]) + " ".join(every[::11]))
rng = random.Random(7)
pieces = [" ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", "'s", "'S", "'ll", "'", "''re", "\u2019s", "1", "23", "\u00b2", "\u0663",
          "a", "The", " the", "ing", "\u00e9", "e\u0301", "\u4e2d\u6587", "\U0001f600", "\u200d", "!", "...", "<|endoftext|>", "<|endoftext|", "\0", "_", "-"]
for _ in range(300):
    texts.append("".join(rng.choice(pieces) for _ in range(rng.randrange(1, 60))))
for _ in range(50):
    texts.append("".join(rng.choice(every) for _ in range(200)))
for _ in range(20):  # long runs without a position to split
    texts.append("".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.choice([127, 128, 129, 130, 3000]))))
texts += ["", " ", "\n", "a" * 5000, " " * 3000, "ab" * 1000 + " " * 500 + "\n", "  a", "a  ", "a \n b", "=" * 2000]

for i, text in enumerate(texts):
    path = pathlib.Path(out) / str(i)
    path.with_suffix(".txt").write_bytes(text.encode())
    np.array(encoding.encode_ordinary(text), np.uint32).tofile(path.with_suffix(".ordinary"))
    np.array(encoding.encode(text, allowed_special="all"), np.uint32).tofile(path.with_suffix(".special"))
(pathlib.Path(out) / "count").write_text(str(len(texts)))
