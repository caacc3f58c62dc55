"""Common axis labels and drawing functions of the figures of this document."""

from sgdynamics_reproductions.drawing import draw_runs, finish, panels

__all__ = ["ALPHA", "TIME", "draw_runs", "finish", "panels"]

ALPHA = "$\\alpha$ = samples/$d$"
TIME = "$t$ = lr steps/$d$"
