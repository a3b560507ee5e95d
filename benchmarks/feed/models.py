"""Models: ResNet-50, and a small transformer whose steps are bound by launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .work import TOKENS, WORDS

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, stride of the first
CLASSES = 1_000
LAYERS, WIDTH, HEADS = 12, 256, 4

Step = Callable[[Any], None]


def _convolution(inputs: int, outputs: int, side: int = 1, stride: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, side, stride, padding=side // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """A block of ResNet-50: 1x1, 3x3 and 1x1 convolutions beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(inputs, width)
        self.second = _convolution(width, width, 3, stride)
        self.third = _convolution(width, 4 * width)
        same = stride == 1 and inputs == 4 * width
        self.shortcut = nn.Identity() if same else _convolution(inputs, 4 * width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of 4 times the width."""
        found = torch.relu(self.first(x))
        found = self.third(torch.relu(self.second(found)))
        return torch.relu(found + self.shortcut(x))


def resnet50() -> nn.Sequential:
    """Return ResNet-50: photographs (B, 3, 224, 224) -> scores (B, 1000)."""
    layers: list[nn.Module] = [_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks, stride in STAGES:
        for number in range(blocks):
            layers.append(Bottleneck(inputs, width, 1 if number else stride))
            inputs = 4 * width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES)]
    return nn.Sequential(*layers, *head)


class Transformer(nn.Module):
    """Scores for the next token: (B, TOKENS) -> (B, TOKENS, WORDS)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.zeros(TOKENS, WIDTH))
        options: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.layers = nn.Sequential(
            *(nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, **options) for _ in range(LAYERS))
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores."""
        scores: Tensor = self.head(self.layers(self.words(x) + self.places))
        return scores


def step_of(model: str, device: str) -> Step:
    """Return a training step in bfloat16 that leaves no work of the host for later.

    Raises:
        KeyError: the model is not known.
    """
    return {"resnet50": photograph_step, "transformer": token_step}[model](device)[1]


def photograph_step(device: str) -> tuple[nn.Module, Step]:
    """Return ResNet-50 and a step on photographs: uint8 (B, 224, 224, 3)."""
    torch.backends.cudnn.benchmark = True
    net = resnet50().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, foreach=True)

    def step(batch: Any) -> None:
        photos = torch.as_tensor(batch).permute(0, 3, 1, 2).to(torch.bfloat16).div(255)
        with torch.autocast(device, torch.bfloat16):
            loss = net(photos).float().logsumexp(1).mean()
        _learn(loss, optimizer)

    return net, step


def token_step(device: str) -> tuple[nn.Module, Step]:
    """Return the transformer and a step on sequences: int64 (B, TOKENS)."""
    net = Transformer().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, foreach=True)

    def step(batch: Any) -> None:
        tokens = torch.as_tensor(batch)
        with torch.autocast(device, torch.bfloat16):
            scores = net(tokens).float()
        _learn(nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten()), optimizer)

    return net, step


def _learn(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
