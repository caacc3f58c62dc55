"""Overlaps of real networks: all types of arrays, all scalings, and bad input."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.problems.network_overlaps import overlaps_of

RNG = np.random.default_rng(0)
P, K, D = 3, 2, 40
W = RNG.normal(size=(P, D)) / D**0.5
TEACHER = RNG.normal(size=(K, D)) / D**0.5
HEAD = RNG.normal(size=P)
GRAM = TEACHER @ TEACHER.T


class Tensor:
    """A stand-in for a PyTorch tensor that requires a gradient and is on a GPU."""

    def __init__(self, value, attached=True, far=True):
        self.value, self.attached, self.far = value, attached, far

    def detach(self):
        return Tensor(self.value, False, self.far)

    def cpu(self):
        return Tensor(self.value, self.attached, False)

    def numpy(self):
        if self.attached or self.far:
            raise RuntimeError(
                "can't call numpy() on a tensor that requires grad or is not on the CPU"
            )
        return self.value

    def __array__(self, dtype=None, copy=None):
        return self.numpy()


def problem(**options):
    return sgd.TeacherStudent(
        width=P, teacher_width=K, activation="erf", teacher_gram=GRAM, **options
    )


@pytest.mark.parametrize(
    "kind",
    [np.asarray, jnp.asarray, Tensor, np.ndarray.tolist],
    ids=["numpy", "jax", "tensor", "lists"],
)
def test_every_kind_of_array(kind):
    tolerance = (
        1e-12 if kind is not jnp.asarray else 1e-6
    )  # JAX arrays are single precision by default
    start = overlaps_of(kind(W), kind(TEACHER), kind(HEAD), problem())
    np.testing.assert_allclose(start.M[0], W @ TEACHER.T, atol=tolerance)
    np.testing.assert_allclose(start.Q[0], W @ W.T, atol=tolerance)
    np.testing.assert_allclose(start.a[0], HEAD, atol=tolerance)
    assert start.M_blocks.shape == (1, 1, P, K)


def test_pytorch():
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(D, P, bias=False)
    head = torch.nn.Linear(P, 1, bias=False).to(torch.bfloat16)  # NumPy has no bfloat16
    start = overlaps_of(layer.weight, torch.tensor(TEACHER), head.weight, problem())
    rows = layer.weight.detach().numpy().astype(float)
    np.testing.assert_allclose(start.M[0], rows @ TEACHER.T, atol=1e-12)
    np.testing.assert_allclose(start.a[0], head.weight.detach().float().numpy()[0], atol=1e-12)


def test_runs_and_blocks():
    rows = RNG.normal(size=(5, P, D))
    start = overlaps_of(rows, TEACHER, RNG.normal(size=(5, 1, P)))
    assert start.runs == 5
    np.testing.assert_allclose(start.Q[3], rows[3] @ rows[3].T, atol=1e-12)
    np.testing.assert_allclose(start.M[3], rows[3] @ TEACHER.T, atol=1e-12)
    first, second = TEACHER[:, :10], TEACHER[:, 10:]
    blocks = sgd.TeacherStudent(
        width=P,
        teacher_width=K,
        covariance=[(0.5, 0.25), (2.0, 0.75)],
        teacher_gram=np.stack([first @ first.T, second @ second.T]),
    )
    split = overlaps_of(rows, TEACHER, problem=blocks)
    np.testing.assert_allclose(split.M_blocks[2, 0], rows[2][:, :10] @ first.T, atol=1e-12)
    np.testing.assert_allclose(
        split.Q_blocks[2, 1], rows[2][:, 10:] @ rows[2][:, 10:].T, atol=1e-12
    )
    np.testing.assert_allclose(split.a, 1.0)


def test_scalings_give_the_same_network_and_the_same_training():
    """A step of SGD on a network in other units moves its overlaps as in the library's units.

    The network is f = p^(-1/2) sum_i a'_i s(w'_i.x/sqrt(d)), with learning rates eta and eta'.
    """
    s, out, eta, eta_head = D**-0.5, P**-0.5, 0.7, 0.02
    c = P * out
    lr, head_rate = eta * D * s**2, (eta_head * c**2) / (eta * s**2)
    x, y = RNG.normal(size=D), 0.3

    def own_loss(parameters):
        w, a = parameters
        return (out * jnp.sum(a * jnp.tanh(s * (w @ x))) - y) ** 2 / 2

    def library_loss(parameters):
        w, a = parameters
        return (jnp.mean(a * jnp.tanh(w @ x)) - y) ** 2 / 2

    own_parameters = (W / s, HEAD / c)
    before = overlaps_of(
        *own_parameters[:1],
        TEACHER / s,
        own_parameters[1],
        problem(),
        input_scale=s,
        output_scale=out,
    )
    np.testing.assert_allclose(before.Q[0], W @ W.T, atol=1e-12)
    np.testing.assert_allclose(before.a[0], HEAD, atol=1e-12)
    with jax.enable_x64(True):
        np.testing.assert_allclose(own_loss(own_parameters), library_loss((W, HEAD)), rtol=1e-12)
        g, h = jax.grad(own_loss)(own_parameters), jax.grad(library_loss)((W, HEAD))
        own_after = (
            own_parameters[0] - eta * np.asarray(g[0]),
            own_parameters[1] - eta_head * np.asarray(g[1]),
        )
        expected = (W - lr / D * np.asarray(h[0]), HEAD - head_rate * lr / D * np.asarray(h[1]))
    after = overlaps_of(
        own_after[0],
        TEACHER,
        own_after[1],
        problem(),
        input_scale=s,
        output_scale=out,
        teacher_scale=1.0,
    )
    np.testing.assert_allclose(after.Q[0], expected[0] @ expected[0].T, atol=1e-12)
    np.testing.assert_allclose(after.M[0], expected[0] @ TEACHER.T, atol=1e-12)
    np.testing.assert_allclose(after.a[0], expected[1], atol=1e-12)


def test_the_output_of_a_mixture_is_not_divided_by_p():
    mixture = sgd.GaussianMixture("binary", width=P, snr=4.0)
    start = overlaps_of(W, np.eye(D)[:1], HEAD, mixture, output_scale=0.5)
    np.testing.assert_allclose(start.a[0], 0.5 * HEAD)
    np.testing.assert_allclose(start.M[0, :, 0], W[:, 0])
    with pytest.raises(ValueError, match="orthonormal means"):
        overlaps_of(W, 2 * np.eye(D)[:1], HEAD, mixture)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((W.T, TEACHER), r"give both with the shape \(rows, inputs\)"),
        ((W, TEACHER[:1], None, problem()), "teacher has 1 rows"),
        ((W[:2], TEACHER, None, problem()), "weights has 2 rows"),
        ((W, TEACHER * 1.01, None, problem()), "teacher_gram = teacher @ teacher.T"),
        ((W, TEACHER, None, problem(head="trained")), "head is trained"),
        ((W, TEACHER, HEAD[:2]), "one number per unit"),
        ((np.full_like(W, np.nan), TEACHER), "not finite"),
        ((W + 1j, TEACHER), "real numbers"),
        ((W[0], TEACHER), "units x inputs"),
        (("weights", TEACHER), "array of numbers"),
        ((np.stack([W] * 3), np.stack([TEACHER] * 2)), "one teacher, or one per run"),
        ((np.stack([W] * 2), np.stack([TEACHER, 2 * TEACHER])), "between runs"),
        ((W, TEACHER, None, problem(constraint="sphere")), "keeps rows of norm 1"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        overlaps_of(*arguments)


def test_single_precision_is_accepted():
    start = overlaps_of(W.astype(np.float32), TEACHER.astype(np.float32), HEAD, problem())
    np.testing.assert_allclose(start.Q[0], W @ W.T, atol=1e-6)
    np.testing.assert_allclose(start.M[0], W @ TEACHER.T, atol=1e-6)
