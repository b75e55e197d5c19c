"""Any PyTorch program: a small network, run a few times. Nothing here knows of kclab.

kclab capture run --define-missing -- python examples/toy_linear.py
"""

import torch
from torch import nn


class Network(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


torch.manual_seed(0)
network = Network()
with torch.inference_mode():
    for rows in (1, 16, 128):
        print(rows, network(torch.randn(rows, 64)).norm().item())
