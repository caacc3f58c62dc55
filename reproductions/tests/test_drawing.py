"""Drawing functions that the figures share."""

from __future__ import annotations

import itertools

from sgdynamics_reproductions.drawing import legend_below, readable, subplots


def test_logarithmic_ticks_can_be_read_and_legends_hide_nothing():
    fig, axes = subplots(1, 3, (12, 4))
    for ax, (low, high) in zip(axes, ((0.02, 0.09), (0.001, 0.05), (1e-5, 1.0)), strict=True):
        ax.plot([1, 2], [low, high], label="a curve")
        ax.set_yscale("log")
        legend_below(ax)
    readable(axes)
    fig.canvas.draw()
    for ax in axes:
        drawn = [
            (tick.get_text(), tick.get_window_extent()) for tick in ax.get_yticklabels(which="both")
        ]
        heights = sorted(
            (box.ymin, box.ymax)
            for text, box in drawn
            if text and ax.bbox.ymin <= box.ymin <= ax.bbox.ymax
        )
        assert len(heights) >= 3
        assert all(lower[1] <= upper[0] for lower, upper in itertools.pairwise(heights))
        assert ax.get_legend().get_window_extent().ymax < ax.xaxis.get_tightbbox().ymin
