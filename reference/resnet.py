"""resnet.safetensors, resnet.json: encoders and projection head with hash-valued weights (golden.hashed)."""

import math

import torch
from torch import nn
from torchvision.models import resnet18, resnet34, resnet50, resnet101, resnet152
from torchvision.models.resnet import BasicBlock, Bottleneck, conv1x1

from golden import hashed, save_json, save_tensors


class WidthResNet(nn.Module):
    """ResNet with free widths; names as torchvision's. cifar: 3x3 stride-1 stem without pooling."""

    def __init__(self, block, depths, width, cifar=False):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False) if cifar else nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool = nn.Identity() if cifar else nn.MaxPool2d(3, 2, 1)
        channels, self.stages = width, len(depths)
        for k, depth in enumerate(depths):
            planes, blocks = width * 2**k, []
            for i in range(depth):
                stride, out = (2 if k > 0 and i == 0 else 1), planes * block.expansion
                project = stride != 1 or channels != out
                shortcut = nn.Sequential(conv1x1(channels, out, stride), nn.BatchNorm2d(out)) if project else None
                blocks.append(block(channels, planes, stride, shortcut))
                channels = out
            self.add_module(f"layer{k + 1}", nn.Sequential(*blocks))

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for k in range(self.stages):
            x = getattr(self, f"layer{k + 1}")(x)
        return x.mean((2, 3))


class Head(nn.Module):
    """Linear, BN, ReLU, Linear, BN without shift   8 -> 16 -> 4"""

    class Layer(nn.Module):
        def __init__(self, inputs, outputs, shift):
            super().__init__()
            self.linear = nn.Linear(inputs, outputs, bias=False)
            self.bn = nn.BatchNorm1d(outputs)
            if not shift:
                self.bn.bias = None

        def forward(self, x):
            return self.bn(self.linear(x))

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Head.Layer(8, 16, True), Head.Layer(16, 4, False)])

    def forward(self, x):
        return self.layers[1](self.layers[0](x).relu())


def backbone(build):
    def without_fc():
        model = build()
        model.fc = nn.Identity()
        return model

    return without_fc


def cifar_resnet18():
    model = backbone(resnet18)()
    model.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    model.maxpool = nn.Identity()
    return model


# name: (model, eval input, train input)
MODELS = {
    "resnet18": (backbone(resnet18), (2, 3, 64, 64), (4, 3, 64, 64)),
    "resnet34": (backbone(resnet34), (2, 3, 64, 64), None),
    "resnet50": (backbone(resnet50), (2, 3, 64, 64), (4, 3, 64, 64)),
    "resnet101": (backbone(resnet101), (2, 3, 64, 64), None),
    "resnet152": (backbone(resnet152), (2, 3, 64, 64), None),
    "resnet50_2x": (lambda: WidthResNet(Bottleneck, [3, 4, 6, 3], 128), (2, 3, 32, 32), None),
    "cifar_resnet18": (cifar_resnet18, (2, 3, 32, 32), (4, 3, 32, 32)),
    "cifar_resnet20": (lambda: WidthResNet(BasicBlock, [3, 3, 3], 16, cifar=True), (4, 3, 32, 32), (4, 3, 32, 32)),
}


def weight(name, shape, open_relu):
    """open_relu: normalised values stay near 1, so that rounding moves none across the kink at 0."""
    r = hashed(name, *shape)
    if name.endswith("running_mean"):
        return 0.1 * r
    if name.endswith("running_var"):
        return 1 + 0.5 * r.abs()
    if len(shape) == 4:
        return r * math.sqrt(6 / math.prod(shape[1:]))
    if len(shape) == 2:
        return r * math.sqrt(3 / shape[1])
    if name.endswith("bias"):
        return 0.1 * r + (1 if open_relu else 0)
    return (1 + 0.1 * r) * (0.1 if open_relu else 1)


def fill(model, open_relu=False):
    model = model.double()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("num_batches_tracked"):
                tensor.zero_()
            else:
                tensor.copy_(weight(name, tensor.shape, open_relu))
    return model


def projections(tensors):
    """[Σ g, Σ g*r("probe." + name), ‖g‖] per tensor   [count, 3]"""
    rows = [(g.sum(), (g * hashed("probe." + name, *g.shape)).sum(), g.norm()) for name, g in tensors.items()]
    return torch.tensor(rows, dtype=torch.float64)


def train_step(model, x):
    """y, ∂(Σ y*r("probe"))/∂parameters, running statistics after the step"""
    y = model.train()(x)
    (y * hashed("probe", *y.shape)).sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    statistics = {name: s for name, s in model.named_buffers() if "running" in name}
    return y, grads, statistics


def parameter_count(model):
    return sum(p.numel() for p in model.parameters())


def main():
    tensors, models = {}, {}
    for name, (build, eval_shape, train_shape) in MODELS.items():
        model = fill(build())
        models[name] = {"parameters": parameter_count(model), "eval_input": eval_shape}
        with torch.no_grad():
            features = model.eval()(hashed("input", *eval_shape))
        tensors[f"{name}.eval.features"] = features.float()
        if train_shape:
            for mode, open_relu in [("train", False), ("train_open", True)]:
                features, grads, statistics = train_step(fill(build(), open_relu), hashed("input", *train_shape))
                tensors[f"{name}.{mode}.features"] = features
                tensors[f"{name}.{mode}.grads"] = projections(grads)
                tensors[f"{name}.{mode}.statistics"] = projections(statistics)
            models[name] |= {
                "train_input": train_shape,
                "grads": list(grads),
                "statistics": list(statistics),
            }
    with torch.device("meta"):
        models["resnet50_4x"] = {"parameters": parameter_count(WidthResNet(Bottleneck, [3, 4, 6, 3], 256))}

    y, grads, statistics = train_step(fill(Head()), hashed("head_input", 6, 8))
    tensors["head.output"] = y
    tensors |= {f"head.grad.{name}": g for name, g in grads.items()}
    tensors |= {f"head.statistics.{name}": s for name, s in statistics.items()}

    save_tensors("resnet.safetensors", tensors)
    save_json("resnet.json", models)


if __name__ == "__main__":
    main()
