"""`sgd.plot.protocol`: the controls of a protocol over alpha, and the risk below them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sgdynamics.analysis.protocols.result import BOUND_TOLERANCE, OptimalProtocol
from sgdynamics.base import checks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELS = {
    "lr": "learning rate",
    "noise": "label noise",
    "weight_decay": "weight decay",
    "head_rate": "rate of the head",
}
# Ratio of the largest to the smallest value above which a control has a logarithmic axis.
LOG_RATIO = 30.0


def protocol(result: OptimalProtocol) -> tuple[Any, Any]:
    """Plot a protocol over alpha, compared with the best constants.

    Each control is a step function in a panel of its own, with its bounds and switches. The lowest
    panel has the risk.

    Parameters
    ----------
    result : OptimalProtocol
        A result of ``sgd.optimal_protocol`` or ``sgd.optimal_schedule``.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The figure.
    ax : ndarray of matplotlib.axes.Axes
        The axes: one per control, and that of the risk.

    Raises
    ------
    ValueError
        If the result is not an ``OptimalProtocol``.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    >>> start = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
    >>> arguments = {"alpha": 5.0, "controls": {"lr": (0, 2)}, "pieces": 4, "progress": False}
    >>> best = sgd.optimal_protocol(problem, sgd.OnePassSGD(), start, **arguments)
    >>> fig, ax = sgd.plot.protocol(best)
    >>> ax[0].get_ylabel()
    'learning rate'
    """
    if not isinstance(result, OptimalProtocol):
        raise checks.reject("result", result, "give a result of sgd.optimal_protocol")
    import matplotlib.pyplot as plt

    rows = len(result.protocol) + 1
    fig, axes = plt.subplots(
        rows, 1, figsize=(6, 2.1 * rows + 0.6), sharex=True, layout="constrained"
    )
    for ax, (name, values) in zip(axes, result.protocol.items(), strict=False):
        _draw_control(ax, result, name, values)
    _draw_risk(axes[-1], result)
    return fig, axes


def _draw_risk(ax: Axes, result: OptimalProtocol) -> None:
    constant_style = {"color": "C3", "lw": 1.2, "ls": "--", "label": "best constants"}
    ax.plot(result.edges, result.risks, color="C0", lw=1.6, label="protocol")
    ax.plot(result.edges, result.constant_risks, **constant_style)
    evaluate = result.request.evaluate
    structure = getattr(result.problem if evaluate is None else evaluate, "structure", None)
    has_excess = structure is not None and structure.has_excess
    is_positive = np.all(result.risks > 0) and np.all(result.constant_risks > 0)
    ax.set(
        xlabel=r"$\alpha$ = samples / $d$",
        ylabel="excess risk" if has_excess else "risk",
        yscale="log" if is_positive else "linear",
    )
    ax.set_xlim(0, result.alpha)
    ax.legend(frameon=False, title=f"gain {result.gain:.3g}")


def _draw_control(ax: Axes, result: OptimalProtocol, name: str, values: np.ndarray) -> None:
    constant, (low, high) = result.constant[name], result.bounds[name]
    lowest, highest = min(values.min(), constant), max(values.max(), constant)
    is_log = low > 0 and highest > LOG_RATIO * lowest
    ax.stairs(values, result.edges, color="C0", lw=1.6, baseline=None, label="protocol")
    ax.axhline(constant, color="C3", lw=1.2, ls="--", label=f"best constant, {constant:.3g}")
    # A bound far away from all values would compress them: it is drawn only if it is reached or
    # close.
    tolerance = BOUND_TOLERANCE * (high - low)
    draws_low = np.isclose(values.min(), low, atol=tolerance) or (low >= 0 and not is_log)
    draws_high = np.isclose(values.max(), high, atol=tolerance) or high < 2 * highest
    bound_style = {"color": "0.6", "lw": 0.8, "ls": "-", "zorder": 0}
    if draws_low:
        ax.axhline(low, label="bounds", **bound_style)
        lowest, highest = min(lowest, low), max(highest, low)
    if draws_high:
        ax.axhline(high, **bound_style)
        lowest, highest = min(lowest, high), max(highest, high)
    for index, alpha in enumerate(result.switches[name]):
        ax.axvline(alpha, color="0.4", lw=0.8, ls=":", label="switches" if index == 0 else None)
    margin = 0.06 * (highest - lowest) or 0.1
    limits = (lowest - margin, highest + margin)
    if is_log:
        limits = (lowest / 1.3, highest * 1.3)
    label = LABELS.get(name.rpartition(".")[2], name)
    ax.set(ylabel=label, yscale="log" if is_log else "linear", ylim=limits)
    ax.legend(frameon=False, fontsize="small")
