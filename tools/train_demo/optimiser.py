"""Muon for the matrices, AdamW for the rest, and the learning rate."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .processes import Group

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


class Muon:
    """Momentum whose step is made orthogonal (K. Jordan, 2024); matrices of one shape go together."""

    def __init__(self, parameters: list[nn.Parameter], group: Group, momentum: float = 0.95):
        self.momentum = momentum
        self.processes = group
        self.groups: dict[tuple[int, int], list[nn.Parameter]] = {}
        for parameter in parameters:
            self.groups.setdefault(_tall(parameter).shape, []).append(parameter)
        self.buffers = {shape: torch.zeros(len(group), *shape) for shape, group in self.groups.items()}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One step for the parameters that have a gradient; the processes share the work of it."""
        stepped: list[nn.Parameter] = []
        updates: list[Tensor] = []
        for shape, group in self.groups.items():
            some = [number for number, parameter in enumerate(group) if parameter.grad is not None]
            if not some:
                continue
            gradient = torch.stack([_tall(group[number].grad) for number in some])
            buffer = self.buffers[shape][some].lerp_(gradient, 1 - self.momentum)
            self.buffers[shape][some] = buffer
            update = torch.zeros_like(gradient)
            mine = slice(self.processes.number, None, self.processes.size)
            update[mine] = _orthogonal(gradient[mine].lerp(buffer[mine], self.momentum))
            stepped += [group[number] for number in some]
            updates += update.unbind(0)
        self.processes.add(updates)
        for parameter, update in zip(stepped, updates, strict=True):
            wide = parameter.shape[0] < parameter.shape[1]
            scale = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
            parameter.sub_(update.T if wide else update, alpha=rate * scale)

    def state_dict(self) -> dict[str, Tensor]:
        return {f"{a}x{b}": buffer for (a, b), buffer in self.buffers.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for (a, b), buffer in self.buffers.items():
            buffer.copy_(state[f"{a}x{b}"])


def _tall(matrix: Tensor) -> Tensor:
    return matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T


def _orthogonal(stack: Tensor, steps: int = 5) -> Tensor:
    """[n,a,b], a >= b -> matrices with about the same singular vectors and singular values near 1."""
    a, b, c = _NEWTON_SCHULZ
    x = stack.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.transpose(1, 2)
        x = a * x + torch.baddbmm(b * square, square, square, alpha=c) @ x
    return x.transpose(1, 2)


class Optimiser:
    """Both, over a reader and its auxiliary heads."""

    def __init__(
        self,
        reader: nn.Module,
        head: nn.Module,
        places: nn.Module,
        muon_rate: float,
        adam_rate: float,
        group: Group,
    ):
        self.muon_rate, self.adam_rate = muon_rate, adam_rate
        matrices, others, patches = [], [*head.parameters()], []
        for name, parameter in reader.named_parameters():
            if "patch_embed" in name:
                patches.append(parameter)
            elif parameter.ndim == 2 and "embed_tokens" not in name and "lm_head" not in name:
                matrices.append(parameter)
            else:
                others.append(parameter)
        self.muon = Muon(matrices, group)
        # Six copies of a patch act as one (see architecture.py): each moves a sixth. Heads for places begin at zero and
        # move fast, or what they ask for would not reach the reader for long.
        groups = [
            {"params": others, "share": 1.0},
            {"params": patches, "share": 1 / 6},
            {"params": [*places.parameters()], "share": 5.0},
        ]
        self.adam = torch.optim.AdamW(groups, lr=adam_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True)

        self.processes = group
        self.parameters = [*reader.parameters(), *head.parameters(), *places.parameters()]

    def step(self, factor: float) -> None:
        """One step at `factor` times the full rates, with the gradients of all processes; they are cleared."""
        self.processes.add([parameter.grad for parameter in self.parameters if parameter.grad is not None])
        with_gradient = [p for group in self.adam.param_groups for p in group["params"] if p.grad is not None]
        torch.nn.utils.clip_grad_norm_(with_gradient, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = self.adam_rate * factor * group["share"]
        self.muon.step(self.muon_rate * factor)
        self.adam.step()
        for parameter in self.parameters:
            parameter.grad = None

    def state_dict(self) -> dict:
        return {"muon": self.muon.state_dict(), "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])


def rate_factor(step: int, half_life: float, cooldown_start: int | None, cooldown: int) -> float:
    """1 after a short start, then falling as 1 / sqrt(1 + step / half_life), so that a run can go on for as long as
    there is time; a cooldown takes it down to a fiftieth in a straight line over `cooldown` steps."""
    factor = min(1.0, (step + 1) / 30) * (1 + step / half_life) ** -0.5
    if cooldown_start is not None:
        factor *= max(0.02, 1 - (step - cooldown_start) / max(cooldown, 1))
    return factor
