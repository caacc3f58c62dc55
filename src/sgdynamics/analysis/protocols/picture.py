"""A picture of a protocol: its controls over alpha with their bounds and switches, and the risk below."""

from __future__ import annotations

from typing import Any

import numpy as np

from sgdynamics.analysis.protocols.optimise import OptimalProtocol
from sgdynamics.base import checks

LABELS = {
    "lr": "learning rate",
    "noise": "label noise",
    "weight_decay": "weight decay",
    "head_rate": "rate of the head",
}
SPAN = (
    30.0  # from the smallest to the largest value of a control that is drawn on a logarithmic axis
)


def protocol(result: OptimalProtocol) -> tuple[Any, Any]:
    """A protocol over alpha: each control in steps, with its bounds and switches, beside the best constants; below them the risk.

    Parameters
    ----------
    result : OptimalProtocol
        What ``sgd.optimal_protocol`` returned.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The figure.
    ax : ndarray of matplotlib.axes.Axes
        Its axes: one a control, and that of the risk.

    Raises
    ------
    ValueError
        If this is no protocol.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    >>> begin = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
    >>> found = sgd.optimal_protocol(problem, sgd.OnePassSGD(), begin, alpha=5.0, controls={"lr": (0, 2)}, pieces=4, progress=False)
    >>> fig, ax = sgd.plot.protocol(found)
    >>> ax[0].get_ylabel()
    'learning rate'
    """
    if not isinstance(result, OptimalProtocol):
        raise checks.reject("result", result, "give what sgd.optimal_protocol returned")
    import matplotlib.pyplot as plt

    count = len(result.protocol)
    fig, axes = plt.subplots(
        count + 1, 1, figsize=(6, 2.1 * (count + 1) + 0.6), sharex=True, layout="constrained"
    )
    for ax, (name, values) in zip(axes, result.protocol.items(), strict=False):
        _control(ax, result, name, values)
    below = axes[-1]
    below.plot(result.edges, result.risks, color="C0", lw=1.6, label="protocol")
    below.plot(
        result.edges, result.constant_risks, color="C3", lw=1.2, ls="--", label="best constants"
    )
    every = np.concatenate([result.risks, result.constant_risks])
    structure = getattr(
        result.problem if result.asked.evaluate is None else result.asked.evaluate,
        "structure",
        None,
    )
    excess = structure is not None and structure.has_excess
    below.set(
        xlabel=r"$\alpha$ = samples / $d$",
        ylabel="excess risk" if excess else "risk",
        yscale="log" if np.all(every > 0) else "linear",
    )
    below.set_xlim(0, result.alpha)
    below.legend(frameon=False, title=f"gain {result.gain:.3g}")
    return fig, axes


def _control(ax: Any, result: OptimalProtocol, name: str, values: np.ndarray) -> None:
    constant, (low, high) = result.constant[name], result.bounds[name]
    used = np.append(values, constant)
    log = low > 0 and used.max() > SPAN * used.min()
    ax.stairs(values, result.edges, color="C0", lw=1.6, baseline=None, label="protocol")
    ax.axhline(constant, color="C3", lw=1.2, ls="--", label=f"best constant, {constant:.3g}")
    reached = {
        end
        for end, there in ((low, values.min()), (high, values.max()))
        if np.isclose(there, end, atol=1e-5 * (high - low))
    }
    lowest, highest = used.min(), used.max()
    # a bound far from all values would leave nothing to see of them
    for end in (low, high):
        if (
            end in reached
            or (end == high and high < 2 * highest)
            or (end == low and low >= 0 and not log)
        ):
            ax.axhline(
                end, color="0.6", lw=0.8, ls="-", zorder=0, label="bounds" if end == low else None
            )
            lowest, highest = min(lowest, end), max(highest, end)
    for index, place in enumerate(result.switches[name]):
        ax.axvline(place, color="0.4", lw=0.8, ls=":", label="switches" if index == 0 else None)
    margin = 0.06 * (highest - lowest) or 0.1
    ax.set(ylabel=LABELS.get(name.rpartition(".")[2], name), yscale="log" if log else "linear")
    ax.set_ylim((lowest / 1.3, highest * 1.3) if log else (lowest - margin, highest + margin))
    ax.legend(frameon=False, fontsize="small")
