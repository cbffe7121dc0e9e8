"""Checkpoints as Pytorch-UNet writes them."""

import torch


def pytorch_unet_checkpoint(
    classes: int, *, channels: int = 3, bilinear: bool = False, bias: bool = False, depth: int = 4, seed: int = 0
) -> dict:
    """Random weights under Pytorch-UNet's names: batch norm with statistics, logits around 0."""
    base = 4
    generator = torch.Generator().manual_seed(seed)
    weights = {}

    def normal(*shape: int, scale: float) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * scale

    def double_conv(name: str, inputs: int, outputs: int, middle: int) -> None:
        for conv, norm, (a, b) in (("0", "1", (inputs, middle)), ("3", "4", (middle, outputs))):
            weights[f"{name}.double_conv.{conv}.weight"] = normal(b, a, 3, 3, scale=(2 / (9 * a)) ** 0.5)
            if bias:
                weights[f"{name}.double_conv.{conv}.bias"] = normal(b, scale=0.3)
            weights[f"{name}.double_conv.{norm}.weight"] = 1 + normal(b, scale=0.2)
            weights[f"{name}.double_conv.{norm}.bias"] = normal(b, scale=0.3)
            weights[f"{name}.double_conv.{norm}.running_mean"] = normal(b, scale=0.2)
            weights[f"{name}.double_conv.{norm}.running_var"] = 0.5 + normal(b, scale=0.2).abs()
            weights[f"{name}.double_conv.{norm}.num_batches_tracked"] = torch.tensor(7)

    factor = 2 if bilinear else 1
    widths = [base * 2**level for level in range(depth + 1)]
    double_conv("inc", channels, base, base)
    for level in range(depth):
        outputs = widths[level + 1] // (factor if level == depth - 1 else 1)
        double_conv(f"down{level + 1}.maxpool_conv.1", widths[level], outputs, outputs)
    for number, level in enumerate(reversed(range(depth)), start=1):
        inputs, outputs = widths[level + 1], widths[level] // (factor if level else 1)
        if not bilinear:
            weights[f"up{number}.up.weight"] = normal(inputs, inputs // 2, 2, 2, scale=inputs**-0.5)
            weights[f"up{number}.up.bias"] = normal(inputs // 2, scale=0.3)
        double_conv(f"up{number}.conv", inputs, outputs, inputs // 2 if bilinear else outputs)
    weights["outc.conv.weight"] = normal(classes, base, 1, 1, scale=0.2)
    weights["outc.conv.bias"] = normal(classes, scale=0.3)
    return weights
