"""What the figures of this section share: the words on their axes."""

from sgdynamics_reproductions.drawing import finish, panels, runs_on

__all__ = ["ALPHA", "TIME", "finish", "panels", "runs_on"]

ALPHA = "$\\alpha$ = samples/$d$"
TIME = "$t$ = lr steps/$d$"
