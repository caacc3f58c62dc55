"""The open engine stays open: eigenvalues are read in one place, and kinds of problem and loss are asked for only where they are chosen."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src/sgdynamics"
OUTSIDE = ("papers",)  # formulas of one problem each

KINDS = {
    "NetworkLoss",
    "CommitteeLoss",
    "TargetLoss",
    "ClusterLoss",
    "UserLoss",
    "TeacherStudent",
    "MultiIndex",
    "GaussianMixture",
    "SpikedTensor",
    "FixedData",
}
# where a kind is chosen, or an argument of the wrong kind refused, and how often
CHOSEN = {
    "expectations/choice.py": 3,  # which expectation
    "dynamics/choice.py": 1,  # which dynamics
    "results/clock.py": 2,  # t counts lr steps on fixed data, lr steps/d on fresh samples
    "problems/starts.py": 4,  # which start
    "problems/spiked_tensor.py": 1,
    "sweeps/job.py": 1,
    "analysis/regimes.py": 2,  # a plateau is known for a student that can be its teacher
    "fixed_data/sample_stability.py": 2,  # phase retrieval
    "solvers/linear.py": 1,  # which students are linear
}


def sources() -> dict[str, str]:
    found = {
        str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    return {name: text for name, text in found.items() if not name.startswith(OUTSIDE)}


def test_eigenvalues_are_read_in_three_files_at_most():
    # cli/tables.py prints those of a Hessian
    reading = [
        name
        for name, text in sources().items()
        if '["eigenvalues"]' in text and name != "cli/tables.py"
    ]
    assert "samples/input_covariance.py" in reading
    assert len(reading) <= 3, reading


def branches(text: str) -> int:
    """How often a source asks with isinstance for one of the kinds."""
    calls = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    asked = [node.args[1] for node in calls if node.func.id == "isinstance" and len(node.args) == 2]
    return sum(
        any(isinstance(part, ast.Name) and part.id in KINDS for part in ast.walk(kind))
        for kind in asked
    )


def test_kinds_are_asked_for_only_where_they_are_chosen():
    found = {name: count for name, text in sources().items() if (count := branches(text))}
    more = {name: count for name, count in found.items() if count > CHOSEN.get(name, 0)}
    assert more == {}
    assert set(CHOSEN) == set(found)  # the list has nothing that is gone


def test_clusters_are_the_samples_own_matter():
    """What a cluster is made of is read by the sample, by the expectation of clusters, and by the problem that shows it."""
    allowed = {
        "samples/arguments.py",
        "samples/sample.py",
        "expectations/clusters.py",
        "expectations/accuracy.py",
        "problems/problem.py",
    }
    reading = {
        name
        for name, text in sources().items()
        if re.search(r'"cluster_(weights|coefficients|labels|edges)"', text)
    }
    assert reading <= allowed, reading - allowed
    asking = {
        name for name, text in sources().items() if re.search(r"\.clusters\b(?! import)", text)
    }
    assert asking <= {
        "samples/arguments.py",
        "samples/sample.py",
        "problems/problem.py",
        "problems/starts.py",
    }, asking
