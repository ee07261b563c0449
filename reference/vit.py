"""vit.safetensors, vit.json: timm's vision transformer with hash-valued weights: output and all gradients of tiny ones;
names, shapes and parameter counts of ViT-Ti/16, ViT-S/16 and ViT-B/16."""

import timm
import torch
from timm.models.vision_transformer import VisionTransformer

from golden import hashed, save_json, save_tensors

N = 3
TINY = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
CONFIGS = {
    "token": {"in_chans": 3, "global_pool": "token"},
    "avg": {"in_chans": 3, "global_pool": "avg"},
    "channels": {"in_chans": 5, "global_pool": "token"},
}
NAMED = ["vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224"]


def fill(model):
    """1 + 0.2r for layer norm's weights, 0.3r for the rest, by state-dict name"""
    model = model.double()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            r = hashed(name, *tensor.shape)
            tensor.copy_(1 + 0.2 * r if "norm" in name and name.endswith("weight") else 0.3 * r)
    return model


def shapes(model):
    return {name: list(tensor.shape) for name, tensor in model.state_dict().items()}


def epsilon(model):
    """of every layer norm"""
    (value,) = {module.eps for module in model.modules() if isinstance(module, torch.nn.LayerNorm)}
    return value


def tiny(config):
    """-> output [N, 16] and ∂(Σ output*r("probe"))/∂parameters, shapes by name"""
    model = fill(VisionTransformer(num_classes=0, **TINY, **config))
    x = hashed("input", N, config["in_chans"], TINY["img_size"], TINY["img_size"])
    y = model.train()(x)
    torch.testing.assert_close(model.eval()(x), y, rtol=0, atol=0)  # nothing differs in training
    (y * hashed("probe", *y.shape)).sum().backward()
    grads = {f"grad.{name}": p.grad.float() for name, p in model.named_parameters()}
    return {"output": y} | grads, shapes(model), epsilon(model)


def named(name):
    """the first block's shapes stand for all"""
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=0)
    block = {key: tensor.shape for key, tensor in model.blocks[0].state_dict().items()}
    assert all({k: t.shape for k, t in other.state_dict().items()} == block for other in model.blocks)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "blocks": len(model.blocks),
        "heads": model.blocks[0].attn.num_heads,
        "epsilon": epsilon(model),
        "top": {key: shape for key, shape in shapes(model).items() if not key.startswith("blocks.")},
        "block": {f"blocks.0.{key}": list(shape) for key, shape in block.items()},
    }


def main():
    tensors, configs = {}, {}
    for name, config in CONFIGS.items():
        found, by_name, eps = tiny(config)
        tensors |= {f"{name}.{key}": value for key, value in found.items()}
        configs[name] = config | {"epsilon": eps, "shapes": by_name}
    save_tensors("vit.safetensors", tensors)
    info = {"timm": timm.__version__, "batch": N, "tiny": TINY, "configs": configs}
    save_json("vit.json", info | {"named": {name: named(name) for name in NAMED}})


if __name__ == "__main__":
    main()
