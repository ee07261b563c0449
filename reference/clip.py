"""clip.safetensors, clip.json: CLIP's encoders (modified ResNet, vision transformer, text transformer) as open_clip
builds them, with hash-valued weights: outputs and gradient projections of small configurations, parameter counts of
CLIP-S."""

import torch
from open_clip.model import CLIP

from golden import hashed, save_json, save_tensors

SMALL = {"embed_dim": 24, "layers": [1, 2, 1, 1], "width": 16, "image_size": 64, "text_width": 32, "text_heads": 4,
         "text_layers": 2, "context": 12, "vocabulary": 50}
CLIP_S = {"embed_dim": 512, "layers": [3, 4, 6, 3], "width": 32, "image_size": 224, "text_width": 128, "text_heads": 8,
          "text_layers": 8, "context": 77, "vocabulary": 49408}
VIT = {"embed_dim": 24, "layers": 2, "width": 32, "head_width": 8, "patch_size": 8, "image_size": 32}  # text: SMALL's


def build(c):
    # four layer counts: modified ResNet; one: vision transformer
    vision = {key: c[key] for key in ("layers", "width", "head_width", "patch_size", "image_size") if key in c}
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


def probe(name, like):
    return (like * hashed(name, *like.shape)).sum()


def gradients(model):
    """names, and [g·probe, ‖g‖] of each, of the parameters that have a gradient"""
    names, rows = [], []
    for name, value in model.named_parameters():
        if value.grad is None:
            continue
        g = value.grad.double()
        names.append(name)
        rows.append(torch.stack([probe("probe." + name, g), g.norm()]))
    return names, torch.stack(rows)


def vit():
    """the tensors, and the names of the gradients"""
    model = build(SMALL | VIT).double()
    fill(model)
    images = hashed("images.vit", 3, 3, VIT["image_size"], VIT["image_size"])
    model.eval()
    with torch.no_grad():
        out = model.encode_image(images)
    model.train()
    image = model.encode_image(images)
    torch.testing.assert_close(image.detach(), out, rtol=0, atol=1e-12)  # nothing differs in training: one tensor
    probe("probe.vit", image).backward()
    names, rows = gradients(model)
    assert names == [name for name, _ in model.named_parameters() if name.startswith("visual.")]
    return {"vit.eval": out, "vit.grads": rows}, names


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
    (probe("probe.image", image) + probe("probe.text", text)).backward()
    names, tensors["grads"] = gradients(model)
    more, vit_names = vit()
    tensors |= more
    save_tensors("clip.safetensors", {name: v.float() if v.is_floating_point() else v for name, v in tensors.items()})

    whole = build(CLIP_S)
    count = lambda module: sum(p.numel() for p in module.parameters())
    total, vision = count(whole), count(whole.visual)
    counts = {"total": total, "vision": vision, "text": total - vision - 1}
    save_json("clip.json", {"small": SMALL, "ends": ends, "grads": names, "clip_s": counts, "vit": VIT,
                            "vit_grads": vit_names})


if __name__ == "__main__":
    main()
