"""clip.safetensors, clip.json: CLIP's two encoders as open_clip builds them, with hash-valued weights: outputs and
gradient projections of a small configuration, parameter counts of CLIP-S."""

import torch
from open_clip.model import CLIP

from golden import hashed, save_json, save_tensors

SMALL = {"embed_dim": 24, "layers": [1, 2, 1, 1], "width": 16, "image_size": 64, "text_width": 32, "text_heads": 4,
         "text_layers": 2, "context": 12, "vocabulary": 50}
CLIP_S = {"embed_dim": 512, "layers": [3, 4, 6, 3], "width": 32, "image_size": 224, "text_width": 128, "text_heads": 8,
          "text_layers": 8, "context": 77, "vocabulary": 49408}


def build(c):
    vision = {"layers": c["layers"], "width": c["width"], "image_size": c["image_size"]}
    text = {"context_length": c["context"], "vocab_size": c["vocabulary"], "width": c["text_width"],
            "heads": c["text_heads"], "layers": c["text_layers"]}
    return CLIP(c["embed_dim"], vision, text, quick_gelu=True)


def fill(model):
    """r/√fan_in for matrices, 1 + 0.1r for norm weights, 0.1r for other vectors; running statistics likewise"""
    for name, value in list(model.named_parameters()) + list(model.named_buffers()):
        if value.dtype != torch.float64 or name in ("attn_mask", "logit_scale"):
            continue
        r = hashed(name, *value.shape)
        if value.dim() > 1:
            fan_in = value[0].numel()
            new = r * (3 / fan_in) ** 0.5
        elif name.endswith("running_var"):
            new = 1 + 0.5 * r.abs()
        elif name.endswith("weight"):
            new = 1 + 0.1 * r
        else:
            new = 0.1 * r
        with torch.no_grad():
            value.copy_(new)


def main():
    model = build(SMALL).double()
    fill(model)
    images = hashed("images", 3, 3, SMALL["image_size"], SMALL["image_size"])
    ends = [5, 11, 2]
    ids = torch.zeros(3, SMALL["context"], dtype=torch.long)
    for text, end in enumerate(ends):
        ids[text, :end] = torch.tensor([(7 * text + 3 * k) % 48 for k in range(end)])
        ids[text, end] = SMALL["vocabulary"] - 1  # the largest id, where CLIP reads the feature
    tensors = {"ids": ids}
    model.eval()
    with torch.no_grad():
        tensors |= {"image.eval": model.encode_image(images), "text.eval": model.encode_text(ids)}
    model.train()
    image, text = model.encode_image(images), model.encode_text(ids)
    tensors |= {"image.train": image.detach()}
    probe = lambda name, like: (like * hashed(name, *like.shape)).sum()
    (probe("probe.image", image) + probe("probe.text", text)).backward()
    names, rows = [], []
    for name, value in model.named_parameters():
        if value.grad is None:
            continue
        g = value.grad.double()
        names.append(name)
        rows.append(torch.stack([(g * hashed("probe." + name, *g.shape).double()).sum(), g.norm()]))
    tensors["grads"] = torch.stack(rows)
    save_tensors("clip.safetensors", {name: v.float() if v.is_floating_point() else v for name, v in tensors.items()})

    whole = build(CLIP_S)
    count = lambda module: sum(p.numel() for p in module.parameters())
    total, vision = count(whole), count(whole.visual)
    counts = {"total": total, "vision": vision, "text": total - vision - 1}
    save_json("clip.json", {"small": SMALL, "ends": ends, "grads": names, "clip_s": counts})


if __name__ == "__main__":
    main()
