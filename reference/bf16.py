"""bf16.json: how far PyTorch's bf16 autocast on the CPU is from float64 on small networks with hash-valued weights: for
the output and the gradient of every parameter, the norm in float64 and that of the difference."""

import torch
from timm.models.vision_transformer import VisionTransformer
from torchvision.models.resnet import BasicBlock

import clip
import resnet
from golden import hashed, save_json

VIT = {"img_size": 32, "patch_size": 4, "embed_dim": 64, "depth": 6, "num_heads": 4}
CLIP = {"embed_dim": 32, "layers": 1, "width": 64, "head_width": 16, "patch_size": 4, "image_size": 16, "text_width": 64,
        "text_heads": 4, "text_layers": 6, "context": 20, "vocabulary": 50}
TEXTS, IMAGES = 6, [6, 3, 32, 32]


def vit():
    model = VisionTransformer(num_classes=0, **VIT).double()
    clip.fill(model)
    return model, lambda model, dtype: model(hashed("input", *IMAGES).to(dtype))


def text():
    model = clip.build(CLIP).double()
    clip.fill(model)
    ids = torch.tensor([[(7 * text + 3 * k) % 48 for k in range(CLIP["context"])] for text in range(TEXTS)])
    ids[:, -1] = CLIP["vocabulary"] - 1
    return model, lambda model, dtype: model.encode_text(ids)


def resnet8():
    model = resnet.WidthResNet(BasicBlock, [1, 1, 1], 16, cifar=True)
    resnet.fill(model, open_relu=True)
    return model, lambda model, dtype: model(hashed("input", *IMAGES).to(dtype))


def passed(model, forward, dtype, autocast):
    """the output and the gradients of Σ output·r("probe"), in float64"""
    model = model.to(dtype).train()
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = forward(model, dtype)
    (y.to(dtype) * hashed("probe", *y.shape).to(dtype)).sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: value.detach().double().clone() for name, value in ({"output": y} | grads).items()}


def main():
    found = {"vit": VIT, "text": CLIP, "texts": TEXTS, "images": IMAGES}
    for build in (vit, text, resnet8):
        truth = passed(*build(), torch.float64, False)
        ours = passed(*build(), torch.float32, True)
        apart = {name: [value.norm().item(), (ours[name] - value).norm().item()] for name, value in truth.items()}
        found[f"{build.__name__}_apart"] = {name: [float(f"{v:.6g}") for v in both] for name, both in apart.items()}
    save_json("bf16.json", found)


if __name__ == "__main__":
    main()
