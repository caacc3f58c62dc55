"""Stages: reference values, closed linear forms, direct runs, and what reduces to one student."""

from __future__ import annotations

import json

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.problems.students import Labels, Student, Students
from tests.conftest import Z

ERF = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
START = sgd.start(ERF, M=[[0.0]], Q=[[0.5]])
ALGORITHM = sgd.OnePassSGD(lr=1.0)
LINEAR = sgd.TeacherStudent(width=1, activation="linear", noise=0.2)
ORIGIN = sgd.start(LINEAR, M=[[0.0]], Q=[[0.0]])

GOLDEN = (5**0.5 - 1) / 2
# Risk on the truth of generation 4, from quadrature on two grids.
COLLAPSE = {
    ("weighted", 0.0): 0.07654944,
    ("drawn", 0.5): 0.03170517,
    ("weighted", 0.618): 0.01810163,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mixing", "real"),
    [pytest.param(*case, marks=pytest.mark.slow) if case[1] else case for case in COLLAPSE],
)
def test_generations_have_the_reference_values(mixing, real):
    stages = sgd.model_collapse(ERF, ALGORITHM, [6.0], real=real, mixing=mixing)
    result = sgd.stages(sgd.solve_ode, stages, START, rtol=1e-10)
    excess = result.excess_risk.values[0]
    np.testing.assert_allclose(excess[[0, 3]], [0.02105914, COLLAPSE[mixing, real]], atol=6e-9)
    if real == 0.0:
        last = result.isel(run=0, time=-1)
        overlaps = [last.M.item(), last.Q.item(), last.earlier.item()]
        np.testing.assert_allclose(overlaps, [0.62904271, 0.68124298, 0.64465959], atol=6e-9)
    assert result.stage.values[-1] == "generation 4"
    if real == 0.618:
        overlaps = [result.M.values[0, -1].item(), result.Q.values[0, -1].item()]
        np.testing.assert_allclose(overlaps, [0.78966946, 0.69094172], atol=6e-9)
    first = [result.M.values[0, 0].item(), result.Q.values[0, 0].item()]
    np.testing.assert_allclose(first, [0.85570033, 0.82878640], atol=6e-9)
    record = json.loads(result.attrs["stages"])[-1]
    assert record["earlier"] == ["generation 3"]
    assert sgd.problem_of(result) == ERF


def linear_generations(real, mixing, lr, T, noise, generations, fresh, d=None):
    """U_k = |w_k - w*|^2 of linear students by their closed equations (no code is shared).

    With a dimension d these are the means of runs of T d/lr steps.
    """
    E1, E2, G = np.exp(-T), np.exp(-(2 - lr) * T), lr / (2 - lr)
    if d is not None:
        steps, G = round(T * d / lr), lr / (2 - lr * (1 + 2 / d))
        E1, E2 = (1 - lr / d) ** steps, (1 - 2 * lr / d + lr**2 * (d + 2) / d**2) ** steps
    # Gram matrix of (w*, w_(k-1)); the first generation starts at 0 and has real labels
    M, Q = 1 - E1, None
    U = E2 + G * noise * (1 - E2)
    Q = U - 1 + 2 * M
    risks = [U]
    for _ in range(generations - 1):
        s = noise * (real**2 + (1 - real) ** 2)
        if mixing == "drawn":
            s = noise + real * (1 - real) * U
        mean_square = real**2 + 2 * real * (1 - real) * M + (1 - real) ** 2 * Q  # |wb|^2
        mean_truth = real + (1 - real) * M
        mean_old = real * M + (1 - real) * Q
        if fresh:  # v = w - wb = -wb at the start
            v2, v_truth, v_mean = mean_square, -mean_truth, -mean_square
        else:
            v2 = Q - 2 * mean_old + mean_square
            v_truth, v_mean = M - mean_truth, mean_old - mean_square
        v2 = E2 * v2 + G * s * (1 - E2)
        v_truth, v_mean = E1 * v_truth, E1 * v_mean
        M = mean_truth + v_truth
        Q = v2 + 2 * v_mean + mean_square
        U = Q - 2 * M + 1
        risks.append(U)
    return np.array(risks)


@pytest.mark.parametrize(
    ("real", "mixing", "start"),
    [
        (0.0, "weighted", "continue"),
        pytest.param(0.6, "weighted", "fresh", marks=pytest.mark.slow),
        pytest.param(0.3, "drawn", "continue", marks=pytest.mark.slow),
    ],
)
def test_linear_students_follow_the_closed_forms(real, mixing, start):
    stages = sgd.model_collapse(
        LINEAR, sgd.OnePassSGD(lr=0.5), {"times": [2.0]}, 4, real, mixing, start
    )
    result = sgd.stages(sgd.solve_ode, stages, ORIGIN, rtol=1e-12, atol=1e-13)
    expected = linear_generations(real, mixing, 0.5, 2.0, 0.2, 4, start == "fresh")
    np.testing.assert_allclose(2 * result.excess_risk.values[0], expected, atol=1e-10)
    if real == 0.0:
        values = [0.11313460, 0.17648213, 0.23982965]
        np.testing.assert_allclose(expected[:3], values, atol=6e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("real", "start", "expected"),
    [(0.0, "continue", None), (0.618034, "fresh", (0.06946775, 0.04451916))],
)
def test_the_mean_step_at_finite_d_follows_the_closed_forms(real, start, expected):
    """Means of the chain at d = 100, where the closed forms have powers of the exact step."""
    d, T, runs = 100, 4.0, 1000
    stages = sgd.model_collapse(
        LINEAR, sgd.OnePassSGD(lr=0.5), {"times": [T]}, 4, real, "weighted", start
    )
    means = linear_generations(real, "weighted", 0.5, T, 0.2, 4, start == "fresh", d)
    if expected:
        limit = linear_generations(real, "weighted", 0.5, T, 0.2, 4, True)
        np.testing.assert_allclose(means[[0, 3]], expected, atol=1e-8)
        np.testing.assert_allclose(limit[[0, 3]], [0.06898017, 0.04420086], atol=1e-8)
    chain = sgd.stages(sgd.simulate, stages, ORIGIN, dimension=d, runs=runs, seed=3)
    excess = 2 * chain.excess_risk
    error = excess.std("run").values / np.sqrt(runs)
    assert (error < 0.02 * means).all()
    assert (np.abs(excess.mean("run").values - means) < Z * error).all()


@pytest.mark.slow
def test_the_best_share_tends_to_the_golden_ratio():
    end = {"times": [25.0]}
    algorithm = sgd.OnePassSGD(lr=0.5)
    shares = [
        sgd.best_share(LINEAR, algorithm, ORIGIN, alpha=end, generations=count)
        for count in (2, 3, 9)
    ]
    np.testing.assert_allclose(shares, [2 / 3, 0.630993, GOLDEN], atol=2e-4)


@pytest.mark.slow
def test_the_risk_at_the_golden_ratio():
    """U = G noise (1 - 2 r + 2 r^2)/(2 r - r^2) is a share r of that of real labels alone."""
    end, algorithm = {"times": [25.0]}, sgd.OnePassSGD(lr=0.5)
    values = []
    for real in (GOLDEN, 1.0):
        stages = sgd.model_collapse(LINEAR, algorithm, end, 16, real)
        result = sgd.stages(sgd.solve_ode, stages, ORIGIN, rtol=1e-10, atol=1e-12)
        values.append(2 * result.excess_risk.values[0, -1])
    np.testing.assert_allclose(values, [0.04120227, 0.06666667], atol=6e-9)


@pytest.mark.slow
@pytest.mark.parametrize("lr", [0.5, 1.0, 1.5])
def test_the_best_share_of_short_stages_that_continue(lr):
    """(2 - 2 kap) r^2 + 2 kap r = 1, kap = (1 + E2 - 2 E1)/(2 - 2 E1), in the limit of stages."""
    E1, E2 = np.exp(-1.0), np.exp(-(2 - lr))
    kap = (1 + E2 - 2 * E1) / (2 - 2 * E1)
    expected = float(max(np.roots([2 - 2 * kap, 2 * kap, -1])))
    assert abs(expected - {0.5: 0.641347, 1.0: 0.618034, 1.5: 0.576009}[lr]) < 1e-6
    options = {"alpha": {"times": [1.0]}, "generations": 20, "fresh": False}
    share = sgd.best_share(LINEAR, sgd.OnePassSGD(lr=lr), ORIGIN, **options)
    assert abs(share - expected) < 2e-4


@pytest.mark.slow
def test_the_best_shares_of_finite_stages_and_of_networks():
    """Fresh students with T = 4 for a linear one; T = 25 and 9 generations of erf units."""
    algorithm, end = sgd.OnePassSGD(lr=0.5), {"times": [4.0]}
    share = sgd.best_share(LINEAR, algorithm, ORIGIN, alpha=end, generations=9)
    assert abs(share - 0.625513) < 2e-4
    for noise in (0.1, 1.0):
        problem = ERF.replace(noise=noise)
        options = {"alpha": {"times": [25.0]}, "generations": 9}
        share = sgd.best_share(problem, ALGORITHM, START, **options)
        assert abs(share - 0.6175) < 2e-3, noise


@pytest.mark.slow
def test_a_weak_teacher_with_an_orthogonal_error():
    """lr -> 0: U = e^-2t U_strong + (1 - e^-t)^2 U_weak, below both at its minimum."""
    weak_error, strong_error = 0.3, 0.5
    weak_start = sgd.start(LINEAR, M=[[0.0]], Q=[[0.0]])
    # A student with the overlap 1 has an error that is orthogonal to that of the weak one.
    strong_start = sgd.start(LINEAR, M=[[1.0]], Q=[[1.0 + strong_error]])
    slow = sgd.OnePassSGD(lr=1e-9)
    weak_time = -np.log(weak_error) / 2  # U = e^-2t from U = 1
    best = np.log((weak_error + strong_error) / weak_error)
    times = [0.3, best, 4.0]
    weak, strong = (LINEAR, slow, {"times": [weak_time]}), (LINEAR, slow, {"times": times})
    stages = sgd.weak_to_strong(weak, strong, strong_start)
    result = sgd.stages(sgd.solve_ode, stages, weak_start, rtol=1e-12, atol=1e-13)
    U = 2 * result.excess_risk.values[0, 1:4]
    decay = np.exp(-np.array(times))
    expected = decay**2 * strong_error + (1 - decay) ** 2 * weak_error
    np.testing.assert_allclose(U, expected, atol=1e-8)
    assert abs(U[1] - weak_error * strong_error / (weak_error + strong_error)) < 1e-8
    assert U[1] < min(weak_error, strong_error)


@pytest.mark.slow
def test_distilled_linear_students_follow_the_closed_forms():
    """A fresh student on noiseless outputs: w_2 = (1 - e^-t) w_1 with the noise of its steps."""
    stages = sgd.self_distillation(LINEAR, sgd.OnePassSGD(lr=0.5), {"times": [2.0]})
    result = sgd.stages(sgd.solve_ode, stages, ORIGIN, rtol=1e-12, atol=1e-13)
    (M1, M2), (Q1, Q2) = result.M.values.ravel(), result.Q.values.ravel()
    E1, E2 = np.exp(-2.0), np.exp(-3.0)
    assert abs(M2 - (1 - E1) * M1) < 1e-10
    assert abs(Q2 - (E2 * Q1 + (1 - 2 * E1) * Q1)) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("replay", [0.0, 0.4])
def test_fine_tuned_linear_students_follow_the_closed_forms(replay):
    """The second stage starts at w_1 and has the mean label of (1 - r) w* + r w_1."""
    lr, T, noise = 0.5, 1.5, 0.2
    first = sgd.TeacherStudent(
        width=1,
        teacher_width=2,
        activation="linear",
        teacher_head=[2.0, 0.0],
        teacher_gram=[[1.0, 0.3], [0.3, 1.0]],
        noise=noise,
    )
    second = first.replace(teacher_head=[0.0, 2.0])
    algorithm, start = sgd.OnePassSGD(lr=lr), sgd.start(first, M=[[0.0, 0.0]], Q=[[0.0]])
    stage = {"times": [T]}
    stages = sgd.fine_tuning((first, algorithm, stage), (second, algorithm, stage), replay)
    evaluate = {"first": first, "second": second}
    result = sgd.stages(sgd.solve_ode, stages, start, evaluate=evaluate, rtol=1e-12, atol=1e-13)
    E1, E2, G = np.exp(-T), np.exp(-(2 - lr) * T), lr / (2 - lr)
    gram = np.array([[1.0, 0.3], [0.3, 1.0]])
    M1 = (1 - E1) * gram[0]
    Q1 = E2 + G * noise * (1 - E2) - 1 + 2 * M1[0]
    # v = w - wb with wb = (1 - r) w2 + r w1, starts at (1 - r)(w1 - w2).
    distance = Q1 - 2 * M1[1] + 1
    v2 = E2 * (1 - replay) ** 2 * distance + G * noise * (1 - replay) ** 2 * (1 - E2)
    M2 = (1 - replay) * gram[1] + replay * M1 + E1 * (1 - replay) * (M1 - gram[1])
    np.testing.assert_allclose(result.M.values[0, :, 0], [M1, M2], atol=1e-10)
    # |w - w2|^2 with w - w2 = v + r (w1 - w2)
    error = v2 + 2 * replay * E1 * (1 - replay) * distance + replay**2 * distance
    risks = result.evaluated_risk.values[0, -1]
    assert abs(2 * result.excess_risk.values[0, -1] - error) < 1e-10
    assert abs(2 * risks[1] - noise - error) < 1e-10
    Q2 = error - 1 + 2 * M2[1]
    assert abs(2 * risks[0] - noise - (Q2 - 2 * M2[0] + 1)) < 1e-10


def weak_to_strong(times):
    linear = LINEAR.replace(teacher_activation="erf")
    network = ERF.replace(noise=0.2)
    start = sgd.start(network, M=[[0.0]], Q=[[0.3]])
    weak = (linear, sgd.OnePassSGD(lr=0.3), {"times": [4.0]})
    strong = (network, sgd.OnePassSGD(lr=0.5), {"times": times})
    return sgd.weak_to_strong(weak, strong, start), sgd.start(linear, M=[[0.0]], Q=[[0.0]])


@pytest.mark.slow
def test_a_strong_student_recovers_a_part_of_the_gap():
    stages, start = weak_to_strong([8.0, 16.0])
    result = sgd.stages(sgd.solve_ode, stages, start)
    expected = [0.02664051, 0.02088867, 0.02012089, 0.01259705, 0.01036318]
    np.testing.assert_allclose(result.excess_risk.values[0], expected, atol=5e-8)
    assert abs(sgd.gap_recovered(result) - 0.40) < 0.005
    np.testing.assert_allclose(result.M.values[0, 0], 0.55385609, atol=1e-8)
    np.testing.assert_allclose(result.Q.values[0, 0], 0.34490737, atol=1e-8)
    runs = sgd.stages(sgd.simulate, stages, start, dimension=300, runs=100, seed=4)
    mean, error = runs.excess_risk.mean("run").values, runs.excess_risk.std("run").values / 10
    assert (np.abs(mean - expected) < Z * error + 6 * np.array(expected) / 300).all()
    assert mean[2] + Z * error[2] < mean[0]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact", "direct"])
def test_runs_of_stages_agree_with_the_ode(method):
    """The ODE at d = 300 misses runs by O(1/d), which is below their errors here."""
    stages = sgd.model_collapse(ERF, ALGORITHM, [6.0], 3, 0.5, "drawn")
    theory = sgd.stages(sgd.solve_ode, stages, START).excess_risk.values[0]
    runs = sgd.stages(sgd.simulate, stages, START, dimension=300, runs=100, method=method)
    mean = runs.excess_risk.mean("run").values
    error = runs.excess_risk.std("run").values / 10
    assert (np.abs(mean - theory) < Z * error + 2 * theory / 300).all()


@pytest.mark.slow
def test_exact_and_direct_runs_of_stages_have_one_law():
    """At d = 6 the law of the overlaps after two stages, fresh directions included."""
    count = 1000
    stages = sgd.model_collapse(ERF, ALGORITHM, [2.0], 2, 0.4)
    results = [
        sgd.stages(
            sgd.simulate,
            stages,
            START,
            dimension=6,
            runs=count,
            seed=seed,
            method=method,
        )
        for seed, method in ((1, "exact"), (2, "direct"))
    ]
    for name in ("M", "Q", "earlier"):
        first, second = (result[name].values[:, -1].ravel() for result in results)
        for power in (1, 2):
            a, b = first**power, second**power
            error = np.hypot(a.std(), b.std()) / np.sqrt(count)
            assert abs(a.mean() - b.mean()) < Z * error, (name, power)


@pytest.mark.slow
def test_paths_of_the_sde_fluctuate_like_runs():
    stages = sgd.model_collapse(ERF, ALGORITHM, [3.0], 2, 0.4)
    arguments = {"dimension": 400, "runs": 1500}
    paths = sgd.stages(sgd.solve_sde, stages, START, **arguments)
    runs = sgd.stages(sgd.simulate, stages, START, **arguments)
    for name in ("M", "Q", "earlier"):
        ratio = paths[name].values[:, -1].std() / runs[name].values[:, -1].std()
        assert abs(ratio - 1) < Z * np.sqrt(1 / 1500) + 0.02, name


@pytest.mark.slow
def test_a_student_that_labels_rests_and_a_second_start_is_the_first_one():
    """Stages on the truth only are runs of one student, whatever rests next to them."""
    single = sgd.solve_ode(ERF, ALGORITHM, START, alpha=[3.0])
    first = sgd.Stage(ERF, ALGORITHM, [3.0], name="a")
    second = sgd.Stage(ERF, ALGORITHM, [3.0], start="fresh", name="b")
    third = sgd.Stage(ERF, ALGORITHM, [3.0], "a", start="b")
    result = sgd.stages(sgd.solve_ode, [first, second, third], START)
    np.testing.assert_allclose(result.M.values[0, :2, 0, 0], single.M.item(), rtol=1e-8)
    np.testing.assert_allclose(result.earlier.values[0, 1, 0, 0], single.M.item() ** 2, rtol=1e-8)
    record = json.loads(result.attrs["stages"])
    assert [stage["earlier"] for stage in record] == [[], ["a"], ["a"]]


@pytest.mark.slow
def test_weight_decay_moves_only_the_student_that_learns():
    decaying = ERF.replace(weight_decay=0.3)
    stages = [
        sgd.Stage(decaying, ALGORITHM, [2.0]),
        sgd.Stage(decaying, ALGORITHM, [2.0], {"teacher": 0.5, "previous": 0.5}, start="fresh"),
    ]
    runs = sgd.stages(sgd.simulate, stages, START, dimension=100, runs=400)
    theory = sgd.stages(sgd.solve_ode, stages, START, dimension=100)
    # The first stage at finite d is the exact mean only in its overlaps, and starts the second.
    for name in ("M", "Q", "earlier"):
        difference = runs[name].mean("run") - theory[name][0]
        error = runs[name].std("run") / 20
        assert (abs(difference) < Z * error + 0.01).isel(time=-1).all(), name


@pytest.mark.slow
def test_ensembles_have_the_reference_values():
    network = ERF.replace(noise=0.2)
    four = sgd.ensemble(network, 4)
    start = sgd.start(network, M=[[0.0]], Q=[[0.5]])
    evaluate = {"outputs": four.mean_output, "rows": four.mean_rows}
    own = sgd.solve_ode(four, ALGORITHM, four.start(start), times=[6.0], evaluate=evaluate)
    last = own.isel(run=0, time=0)
    np.testing.assert_allclose(last.risk - 0.1, 0.03374075, atol=6e-9)
    np.testing.assert_allclose(last.Q[0, :2], [0.95507348, 0.78310182], atol=1e-8)
    np.testing.assert_allclose(last.evaluated_risk - 0.1, [0.01028142, 0.00959931], atol=6e-9)
    runs = sgd.simulate(
        four, ALGORITHM, four.start(start), times=[6.0], evaluate=evaluate, dimension=300, runs=100
    )
    risks = np.stack([runs.risk.values, runs.evaluated_risk.values[..., 0]], axis=1)[:, :, 0] - 0.1
    error = risks.std(axis=0) / 10
    gap = np.abs(risks.mean(axis=0) - [0.03374075, 0.01028142])
    assert (gap < Z * error + 6 * np.array([0.034, 0.0103]) / 300).all()
    two = sgd.ensemble(network, 2, data="shared")
    evaluate = {"outputs": two.mean_output}
    shared = sgd.solve_ode(two, ALGORITHM, two.start(start), times=[6.0], evaluate=evaluate)
    np.testing.assert_allclose(shared.Q[0, 0, 0], [0.95507348, 0.93468160], atol=1e-8)
    # The risk of the mean of n outputs is linear in 1/n, as the students are exchangeable.
    single, pair = shared.risk.item() - 0.1, shared.evaluated_risk.item() - 0.1
    np.testing.assert_allclose(pair - (single - pair) / 2, 0.03089645, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("data", ["own", "shared"])
def test_runs_of_ensembles_have_the_mean_of_the_exact_step(data):
    two = sgd.ensemble(ERF, 2, data=data)
    start = sgd.start(two, M=[[0.1], [0.7]], Q=[[0.5, 0.1], [0.1, 0.8]])
    algorithm = sgd.OnePassSGD(lr=1.5, batch=2)
    arguments = {"steps": [1], "dimension": 6}
    theory = sgd.solve_ode(two, algorithm, start, times=[1.5 / 6 * 1e-3], dimension=6, rtol=1e-10)
    slope = {
        name: (theory[name].values[0, 0] - start_of) / 1e-3
        for name, start_of in (("M", start.M[0]), ("Q", start.Q[0]))
    }
    for method in ("exact", "direct"):
        runs = sgd.simulate(two, algorithm, start, runs=100_000, method=method, **arguments)
        for name in ("M", "Q"):
            change = runs[name].values[:, 0] - getattr(start, name)[0]
            error = change.std(axis=0) / np.sqrt(len(change))
            limit = Z * error + 5e-3 * np.abs(slope[name])
            assert (np.abs(change.mean(axis=0) - slope[name]) < limit).all(), (method, name)


WRONG = {
    "no such earlier stage": lambda: sgd.stages(
        sgd.solve_ode, [sgd.Stage(ERF, ALGORITHM, 1.0, "old")], START
    ),
    "shares that add up to 1": lambda: sgd.Stage(ERF, ALGORITHM, 1.0, {"teacher": 0.3}),
    "each stage has its own length": lambda: sgd.stages(
        sgd.solve_ode, [sgd.Stage(ERF, ALGORITHM, 1.0)], START, alpha=[1.0]
    ),
    "two stages have this name": lambda: sgd.stages(
        sgd.solve_ode, [sgd.Stage(ERF, ALGORITHM, 1.0, name="a")] * 2, START
    ),
    "real labels": lambda: sgd.stages(
        sgd.solve_ode,
        sgd.model_collapse(
            ERF.replace(noise=0.0, labels=sgd.labels.sign(0.1)), ALGORITHM, [1.0], 2
        ),
        sgd.start(ERF, M=[[0.0]], Q=[[0.5]]),
    ),
    "students are supported by": lambda: sgd.solve_dmft(
        sgd.ensemble(ERF, 2),
        sgd.GradientDescent(lr=0.1, samples_per_dimension=1.0),
        sgd.ensemble(ERF, 2).start(START),
        times=[1.0],
    ),
    "same inputs and signals": lambda: Students(
        {
            "a": Student(ERF, (Labels({"teacher": 1.0}),)),
            "b": Student(ERF.replace(teacher_gram=[[2.0]])),
        }
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_stages_are_rejected(message):
    with pytest.raises(ValueError, match=message):
        WRONG[message]()
