"""Hash-valued tensors and the golden folder."""

import json
import math
import re
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

GOLDEN = Path(__file__).resolve().parent.parent / "crates" / "sogclr" / "tests" / "golden"

GOLDEN.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)


def fnv1a32(name):
    h = 0x811C9DC5
    for byte in name.encode():
        h = ((h ^ byte) * 0x01000193) & 0xFFFFFFFF
    return h


def hashed(name, *shape):
    """r in [-1, 1): x = mix(fnv1a32(name) + j*0x9E3779B9), r = 2*(x >> 8)/2^24 - 1."""
    j = np.arange(math.prod(shape), dtype=np.uint32)
    x = np.uint32(fnv1a32(name)) + j * np.uint32(0x9E3779B9)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    r = (x >> np.uint32(8)).astype(np.float64) / 2**24 * 2 - 1
    return torch.from_numpy(r.reshape(shape))


def save_tensors(name, tensors):
    tensors = {key: value.detach().contiguous() for key, value in tensors.items()}
    save_file(tensors, GOLDEN / name)
    (GOLDEN / name).chmod(0o644)


def save_json(name, value):
    text = json.dumps(value, indent=1, allow_nan=False)
    # innermost lists on one line
    text = re.sub(r"\[[^\[\]{}]*\]", lambda found: " ".join(found.group().split()), text)
    (GOLDEN / name).write_text(text + "\n")
