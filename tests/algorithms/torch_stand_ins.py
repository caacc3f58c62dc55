"""Stand-ins in NumPy for PyTorch's modules, losses and optimisers.

They have the attributes and methods that the library reads, and their names.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np


class Parameter:
    """A tensor that requires a gradient: NumPy reads it only after detach()."""

    def __init__(self, value, requires_grad=True):
        self.value, self.requires_grad = np.array(value, dtype=float), requires_grad

    @property
    def shape(self):
        return self.value.shape

    def detach(self):
        return SimpleNamespace(numpy=lambda: self.value)


class Module:
    """A module whose attributes are its parameters and its submodules."""

    def named_modules(self, prefix=""):
        yield prefix, self
        for name, child in vars(self).items():
            if isinstance(child, Module):
                yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def children(self):
        return (child for child in vars(self).values() if isinstance(child, Module))

    def named_parameters(self):
        for prefix, module in self.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, Parameter):
                    yield f"{prefix}.{name}", value

    def parameters(self):
        return [parameter for _, parameter in self.named_parameters()]


class Linear(Module):
    def __init__(self, weight, bias=None):
        self.weight = Parameter(weight)
        self.bias = None if bias is None else Parameter(bias)

    def __call__(self, x):
        shift = 0.0 if self.bias is None else self.bias.value
        return x @ self.weight.value.T + shift


class Tanh(Module):
    def __call__(self, x):
        return np.tanh(x)


class ReLU(Module):
    def __call__(self, x):
        return np.maximum(x, 0.0)


class Dropout(Module):
    def __call__(self, x):
        return x


class Sequential(Module):
    def __init__(self, *modules):
        for index, module in enumerate(modules):
            setattr(self, str(index), module)

    def __call__(self, x):
        for module in self.children():
            x = module(x)
        return x


class ScaledNetwork(Module):
    """A network whose own forward() scales the preactivations and the output.

    ::

        f(x) = output_scale second(tanh(input_scale first(x)))
    """

    def __init__(self, first, second, input_scale, output_scale):
        self.first, self.second = first, second
        self.input_scale, self.output_scale = input_scale, output_scale

    def __call__(self, x):
        return self.output_scale * self.second(np.tanh(self.input_scale * self.first(x)))


class MSELoss:
    def __init__(self, reduction="mean"):
        self.reduction = reduction

    def __call__(self, output, target):
        return getattr(np, self.reduction)((output - target) ** 2)


def optimiser(name, *groups):
    """An optimiser with the class name and the parameter groups of one of PyTorch."""
    return type(name, (SimpleNamespace,), {})(param_groups=list(groups), state={})
