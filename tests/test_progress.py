"""What a user is told on the way: a bar that moves before anything is finished, and ends full."""

from __future__ import annotations

from rich.progress import Progress

from sgdynamics.progress import meter


def test_the_bar_moves_before_the_first_piece_is_finished(monkeypatch):
    seen = []
    add, update = Progress.add_task, Progress.update
    monkeypatch.setattr(Progress, "add_task", lambda bar, *a, **k: seen.append(("add", k["total"])) or add(bar, *a, **k))
    monkeypatch.setattr(Progress, "update", lambda bar, task, **k: seen.append(("update", k)) or update(bar, task, **k))
    with meter("work", 8.0, True) as shown:
        assert seen == [("add", None)]  # to and fro
        shown.advance(2.0)
        shown.advance(3.0)
        (task,) = shown._bar.tasks
        assert (task.total, task.completed) == (8.0, 5.0)
    assert seen[1:] == [("update", {"total": 8.0}), ("update", {"total": 8.0, "completed": 8.0})]
    with meter("work", 8.0, False) as shown:
        shown.advance(2.0)
