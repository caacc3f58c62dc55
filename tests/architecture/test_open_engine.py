"""The open engine stays open: kinds of problems are distinguished only where one is chosen.

The limits are today's counts. A change that removes a branch lowers its limit; none may rise.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src/sgdynamics"
OUTSIDE = ("papers", "gallery")  # each of their modules is about one problem

KINDS = {
    "NetworkLoss",
    "CommitteeLoss",
    "TargetLoss",
    "ClusterLoss",
    "ContextLoss",
    "GatedLoss",
    "UserLoss",
    "TeacherStudent",
    "MultiIndex",
    "GaussianMixture",
    "Contexts",
    "Rule",
    "SpikedTensor",
    "OnePassSGD",
    "FixedData",
    "EpochSGD",
}
# Files that branch on the class of a problem, a loss or an algorithm, and how often.
BY_CLASS = {
    "algorithms/equations.py": 3,  # which step is printed
    "algorithms/one_pass.py": 1,
    "algorithms/stable_rates.py": 1,
    "algorithms/workers.py": 1,
    "analysis/exit_dmft.py": 1,
    "analysis/plateaus.py": 1,  # a plateau needs a student that can represent its teacher
    "analysis/repeats.py": 1,
    "dynamics/choice.py": 1,  # which dynamics
    "dynamics/diagonal.py": 2,
    "dynamics/equations.py": 4,  # which equations are printed
    "expectations/choice.py": 5,  # which expectation
    "fixed_data/deep_linear_direct.py": 1,
    "fixed_data/deep_linear_runs.py": 2,  # a data set or fresh batches
    "fixed_data/diagonal_runs.py": 1,
    "fixed_data/equations.py": 2,
    "fixed_data/message_passing.py": 1,
    "fixed_data/network_equations.py": 1,  # a data set or fresh batches
    "fixed_data/network_runs.py": 1,  # a data set or fresh batches
    "fixed_data/sample_stability.py": 2,  # phase retrieval
    "ode/equations.py": 1,
    "problems/contexts.py": 1,
    "problems/equations.py": 14,  # which loss is printed
    "problems/spiked_tensor.py": 1,
    "problems/starts.py": 2,  # which start
    "problems/students.py": 2,  # which students have expectations of pairs
    "results/clock.py": 2,  # t counts lr steps on fixed data, lr steps/d on fresh samples
    "results/records.py": 2,
    "solvers/deep_linear.py": 1,
    "solvers/dmft_cells.py": 2,
    "solvers/large_batch.py": 1,
    "solvers/linear.py": 1,  # which students are linear
    "statics/erm.py": 2,  # which students are linear predictors
    "sweeps/job.py": 1,
}
# Files that branch on a string in the attribute `kinds`, besides the support table and the choice
# of a dynamics.
BY_KIND_NAME = {
    "algorithms/one_pass.py": 3,
    "algorithms/updates/state_rate.py": 1,
    "analysis/certify.py": 2,
    "analysis/plateau_growth.py": 1,
    "analysis/fixed_points.py": 1,
    "analysis/protocols/confirm.py": 3,
    "analysis/protocols/controls.py": 1,
    "analysis/protocols/request.py": 1,
    "dynamics/fields.py": 1,
    "dynamics/updates.py": 2,
    "results/records.py": 1,
}
# Files that read the fractions of the covariance blocks, besides samples/input_covariance.py.
BY_FRACTIONS = {
    "analysis/certify.py": 1,
    "analysis/plateaus.py": 1,
    "analysis/regimes.py": 1,
    "fixed_data/dmft.py": 1,
    "fixed_data/response_sweep.py": 1,
    "fixed_data/two_time.py": 2,
    "ode/update_frames.py": 2,
    "problems/frames.py": 1,
    "problems/overlap_starts.py": 1,
    "problems/problem.py": 1,
}
# Files that compare an activation with a named one, besides problems/activations.py.
BY_ACTIVATION = {
    "analysis/plateaus.py": 2,  # which have a closed form
    "expectations/closed_forms/erf.py": 2,  # which activations a family of closed forms covers
    "expectations/closed_forms/relu.py": 1,
    "problems/losses.py": 1,
    "problems/mixture.py": 1,
}


def sources() -> dict[str, str]:
    """The text of each module, by its path in the package."""
    texts = {
        str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    return {name: text for name, text in texts.items() if not name.startswith(OUTSIDE)}


def counts(count: Callable[[str], int], *homes: str) -> dict[str, int]:
    """The number of occurrences in each module, besides its homes."""
    rows = {name: count(text) for name, text in sources().items() if name not in homes}
    return {name: number for name, number in rows.items() if number}


def excess(occurrences: dict[str, int], limits: dict[str, int]) -> dict[str, int]:
    """The modules that exceed their limit."""
    return {name: number for name, number in occurrences.items() if number > limits.get(name, 0)}


def test_eigenvalues_are_read_in_three_files_at_most():
    # cli/tables.py prints those of a Hessian
    reading = [
        name
        for name, text in sources().items()
        if '["eigenvalues"]' in text and name != "cli/tables.py"
    ]
    assert "samples/input_covariance.py" in reading
    assert len(reading) <= 3, reading


def class_branches(text: str) -> int:
    """The number of times a source distinguishes the kinds by isinstance."""
    calls = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    tested = [
        node.args[1] for node in calls if node.func.id == "isinstance" and len(node.args) == 2
    ]
    return sum(
        any(isinstance(node, ast.Name) and node.id in KINDS for node in ast.walk(classes))
        for classes in tested
    )


def kind_name_branches(text: str) -> int:
    """The number of times a source tests whether a string is among the `kinds` of an object."""

    def reads_kinds(node: ast.AST) -> bool:
        return any(
            (isinstance(child, ast.Attribute) and child.attr == "kinds")
            or (isinstance(child, ast.Constant) and child.value == "kinds")
            for child in ast.walk(node)
        )

    tests = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Compare)]
    return sum(
        isinstance(operator, (ast.In, ast.NotIn)) and reads_kinds(container)
        for test in tests
        for operator, container in zip(test.ops, test.comparators, strict=True)
    )


def test_classes_are_distinguished_only_where_one_is_chosen():
    branches = counts(class_branches)
    assert excess(branches, BY_CLASS) == {}
    assert set(BY_CLASS) == set(branches)  # a file without a branch leaves the list


def test_names_of_kinds_are_tested_only_where_one_is_chosen():
    assert kind_name_branches('a = "x" in p.kinds; b = "y" not in getattr(p, "kinds", ())') == 2
    branches = counts(kind_name_branches, "base/support.py", "dynamics/choice.py")
    assert excess(branches, BY_KIND_NAME) == {}


def test_fractions_of_blocks_are_read_by_the_covariance():
    branches = counts(lambda text: text.count('["fractions"]'), "samples/input_covariance.py")
    assert excess(branches, BY_FRACTIONS) == {}


def test_activations_are_compared_with_names_only_where_listed():
    branches = counts(lambda text: text.count("NAMED["), "problems/activations.py")
    assert excess(branches, BY_ACTIVATION) == {}


def test_clusters_are_the_samples_own_matter():
    """Clusters are read by the sample, by their expectation, and by the problem that shows them."""
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
        "problems/equations.py",  # prints the means and labels of the clusters
        "problems/problem_records.py",
        "problems/starts.py",
        "problems/structure.py",
        "statics/erm.py",  # makes the label law of the state equations from the clusters
    }, asking
