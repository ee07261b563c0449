class Block(nn.Module):
    """torchvision's Bottleneck, or its BasicBlock where nothing is expanded."""

    def __init__(self, inputs, channels, stride):
        super().__init__()
        outputs = channels * EXPANSION
        kernels = [1, 3, 1] if EXPANSION > 1 else [3, 3]
        widths = [inputs] + [channels] * (len(kernels) - 1) + [outputs]
        self.layers = len(kernels)
        for layer, kernel in enumerate(kernels):
            step = stride if layer == kernels.index(3) else 1
            conv = nn.Conv2d(widths[layer], widths[layer + 1], kernel, step, kernel // 2, bias=False)
            self.add_module(f"conv{layer + 1}", conv)
            self.add_module(f"bn{layer + 1}", nn.BatchNorm2d(widths[layer + 1]))
        if stride != 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))
        else:
            self.downsample = nn.Identity()

    def forward(self, x):
        y = x
        for layer in range(1, self.layers + 1):
            y = getattr(self, f"bn{layer}")(getattr(self, f"conv{layer}")(y))
            if layer < self.layers:
                y = y.relu()
        return (y + self.downsample(x)).relu()


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        kernel, stride = (3, 1) if SMALL_STEM else (7, 2)
        self.conv1 = nn.Conv2d(CHANNELS, STEM, kernel, stride, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(STEM)
        self.maxpool = nn.Identity() if SMALL_STEM else nn.MaxPool2d(3, 2, 1)
        inputs = STEM
        for stage, (blocks, channels, stride) in enumerate(STAGES, 1):
            layer = []
            for block in range(blocks):
                layer.append(Block(inputs, channels, stride if block == 0 else 1))
                inputs = channels * EXPANSION
            self.add_module(f"layer{stage}", nn.Sequential(*layer))

    def forward(self, x):
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        for stage in range(1, len(STAGES) + 1):
            x = getattr(self, f"layer{stage}")(x)
        return x.mean((2, 3))


def trunk():
    return Trunk()
