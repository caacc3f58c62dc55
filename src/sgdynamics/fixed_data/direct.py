"""Algorithms on a fixed data set, in d dimensions with the data set itself: gradient descent, multi-pass SGD, Langevin.

A step reads the n x d inputs twice, for the fields X W^T and for the gradient h^T X; everything else is small beside that. On a CPU the
runs go one after the other for a few steps each, because a data set then stays in the cache (measured: up to twice as fast as one
batched product); on an accelerator, and where all runs share one data set, they go together. On an NVIDIA GPU one kernel reads the inputs
once for both (`kernel_data`), where it takes the loss; the rest of a step is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from sgdynamics.algorithms.fixed_data import (
    FixedData,
    elapsed_at,
    first_selection,
    kick_size,
    next_selection,
    numbers_of_step,
)
from sgdynamics.algorithms.one_pass import Stride
from sgdynamics.base import checks
from sgdynamics.base.arrays import (
    IntScalar,
    Numeric,
    Parameters,
    PyTree,
    RandomKey,
    RandomKeys,
    Scalar,
)
from sgdynamics.base.controls import values_at
from sgdynamics.base.precision import float64
from sgdynamics.base.random import normals_and_uniforms, run_keys, step_key
from sgdynamics.base.resources import available_bytes
from sgdynamics.problems.frames import compressed_rows, place_signals, signal_frames
from sgdynamics.problems.losses import Loss
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.samples.inputs import Embedding, inputs_in_space
from sgdynamics.samples.sample import as_dtype, example_argument
from sgdynamics.simulation.direct import direct_overlaps, first_rows
from sgdynamics.simulation.exact import LARGEST
from sgdynamics.simulation.gpu import data_gradients, unroll
from sgdynamics.simulation.running import CHECK_STEPS, UNSEEN, Advanced, See, Simulator, Watched

HIGHEST = jax.lax.Precision.HIGHEST  # a GPU would multiply float32 with 10 bits of mantissa
SHARED = 0xFFFFFFFF  # a run number that no run has: whose data set all of them read
CPU_GROUP_BYTES = 1 << 26  # data sets in memory at a time on a CPU, where more of them gain nothing
SHARE_OF_MEMORY = 0.5  # for the data sets of a group: finished runs leave by a copy of the others
ROW_NUMBERS = (
    1 << 20
)  # normals drawn at a time while a data set is made; another value makes other data
COMPUTED = {"float16": "float32"}  # the precision of all but the inputs, where it is not theirs
STRETCH = (
    CHECK_STEPS // 4
)  # steps of a kernel for each decision of the host, which takes as long as a step of small data sets
HALF_RANGE = (
    0.01,
    1000.0,
)  # spreads of inputs that float16 holds: it has 11 bits from 6e-5 to 65504, and fewer below


class Data(NamedTuple):
    """A data set: inputs (n tokens, d), their signals (n tokens, K), and what the loss takes beside them: label noise (n), ..."""

    inputs: Any
    signals: Any
    given: Any


class Weights(NamedTuple):
    """The state of a run: rows (p, d), head (p), which samples are in use (n, or None for all), and the train risk at its first step."""

    rows: Float[Numeric, "... p d"]
    head: Float[Numeric, "... p"]
    selected: Any
    first_risk: Any


class Options(NamedTuple):
    """What compiled code depends on beside the problem's structure."""

    selects: bool
    hot: bool
    shared: bool  # one data set for all runs
    together: bool  # all runs a step, or a few steps of one run after the other
    kernel: str = ""  # "triton": inputs are read once a step, in one kernel; "interpret": the same on a CPU, slowly, for tests


class DirectFixedData(Simulator):
    """Runs in d dimensions, the signals along the first K axes of each covariance block.

    Each run has its own data set, drawn from its key, and starts with the rest of its rows along the next p axes (any other place is a
    rotation of this one). With shared_data=True all runs read one data set, and start in random directions with the given overlaps.
    The simulator holds the data sets of the group that `initial` began, so that they are not copied from step to step.
    On the sphere rows cannot blow up; there a run has diverged when it makes a step longer than the sphere's diameter at a train risk
    above that of its start (a sample with an unstable residual then pulls the row to itself, and neither lets go nor converges).
    """

    def __init__(
        self,
        problem: Problem,
        algorithm: FixedData,
        begin: Start,
        dimension: int,
        sizes: np.ndarray,
        dtype: str = "float64",
        seed: int = 0,
        shared_data: bool = False,
    ) -> None:
        self.structure = problem.structure
        self.stored, self.dtype = (
            np.dtype(dtype),
            np.dtype(COMPUTED.get(dtype, dtype)),
        )  # of the inputs, of all else
        self.options = Options(
            algorithm.selects,
            algorithm.hot,
            shared_data,
            shared_data or jax.default_backend() != "cpu",
        )
        cast = partial(np.asarray, dtype=self.dtype)
        self.parameters = jax.tree.map(
            cast, problem.parameters | {"frame": signal_frames(problem, sizes)}
        )
        self.algorithm = (
            algorithm.parameters
        )  # float64: a schedule counts steps, and few numbers depend on it
        self.dimension, self.samples = dimension, algorithm.samples(dimension)
        check_memory(self)
        self.T, self.L = compressed_rows(problem, begin, sizes)
        self.head = begin.a
        self.edges = (0, *np.cumsum(sizes).tolist())  # of the blocks
        self.place = place_signals(problem, sizes)
        check_range(self)
        self.seed = seed
        if (
            unroll.has_kernels() and not shared_data
        ):  # a product with all runs reads a data set that they share once for all of them
            self.read_once("triton")
        self.data: Data | None = None

    @float64
    def read_once(self, mode: str) -> None:
        """Steps by the kernel that reads the inputs once, where it takes this problem; `engine` says which."""
        given = as_dtype(example_argument(self.structure.sample, self.parameters), self.dtype)
        numbers = as_dtype(self.parameters_now, self.dtype)
        why = data_gradients.against(self.structure, self.dimension, numbers, given, self.dtype)
        if why is None and mode == "triton":
            why = self._refused(numbers, given)
        if why is None:
            self.options = self.options._replace(kernel=mode, together=True)
        self.engine = "kernel (one read a step)" if why is None else f"xla (no kernel: {why})"

    def _refused(self, numbers: Parameters, given: PyTree) -> str | None:
        """What the compiler of kernels says against the sums of one run and one chunk; None where it makes them."""

        def of_samples(
            one: Any, *, lead: tuple[int, ...] = (1, data_gradients.CHUNK)
        ) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((*lead, *np.shape(one)), jnp.result_type(one))

        empty = partial(np.empty, dtype=self.dtype)
        width, signals = self.structure.width, self.structure.signals
        inputs = of_samples(np.empty(self.dimension, self.stored))
        data = Data(inputs, of_samples(empty(signals)), jax.tree.map(of_samples, given))
        rows, head = (
            of_samples(empty((width, self.dimension)), lead=(1,)),
            of_samples(empty(width), lead=(1,)),
        )
        selected = of_samples(np.bool_(True)) if self.options.selects else None
        try:
            jax.jit(partial(data_gradients.sums, self.structure, "triton")).lower(
                numbers, data, rows, head, selected
            ).compile()
        except (
            Exception
        ) as error:  # whatever it is: there is another way, and the result says that it was gone
            return " ".join(str(error).split())[:200]
        return None

    @property
    def parameters_now(self) -> Any:
        """The problem's numbers at the first step."""
        return numbers_of_step(self.parameters, self.algorithm, np.int64(0))[0]

    def initial(self, chosen: np.ndarray) -> Weights:
        self.data = None  # the last group's go before this group's come
        self.now = 0.0
        keys = run_keys(self.seed, chosen)
        owners = run_keys(self.seed, np.array([SHARED])) if self.options.shared else keys
        self.data = _draw_data(
            self.structure,
            self.samples,
            (self.stored, self.dtype),
            self.parameters,
            self.place,
            owners,
        )
        if self.options.shared:
            self.data = jax.tree.map(lambda leaf: leaf[0], self.data)
        rows = jnp.asarray(self._rows(chosen))
        head = jnp.asarray(self.head[chosen], dtype=self.dtype)
        selected = _first(self.samples, self.algorithm, keys) if self.options.selects else None
        begun = Weights(rows, head, selected, jnp.zeros(len(chosen)))
        return begun._replace(first_risk=jnp.asarray(self.train_risk(begun)))

    def resumed(self, chosen: np.ndarray, leaves: list[np.ndarray], now: int) -> Weights:
        state = super().resumed(chosen, leaves, now)
        self.now = float(elapsed_at(self.algorithm["lr"], now))
        return state

    def _rows(self, chosen: np.ndarray) -> np.ndarray:
        p, k = self.structure.width, self.structure.signals
        rows = first_rows(np.concatenate([self.T, self.L], axis=-1)[chosen], self.edges).astype(
            self.dtype
        )
        for block, (low, high) in enumerate(pairwise(self.edges) if self.options.shared else ()):
            for place, run in enumerate(chosen):
                generator = np.random.default_rng(
                    np.random.SeedSequence(self.seed, spawn_key=(int(run), block))
                )
                frame = np.linalg.qr(generator.standard_normal((max(high - low - k, 0), p)))[0]
                rows[place, :, low + k : high] = self.L[run, block][:, : frame.shape[1]] @ frame.T
        return rows

    def advance(
        self, state: Weights, keys: RandomKeys, since: int, end: int, watch: Watched = UNSEEN
    ) -> Advanced:
        numbers = (self.parameters, self.algorithm, np.float64(self.dimension))
        self.now = float(elapsed_at(self.algorithm["lr"], end))
        plan = (self.structure, self.options, Watching(watch.see, self.edges))
        return _advance_on_data(
            *plan,
            *numbers,
            self.data,
            state,
            keys,
            np.int64(since),
            np.int64(end),
            watch.seen,
            watch.given,
        )

    def overlaps(self, state: Weights) -> dict[str, Any]:
        rows, head = (np.asarray(part, dtype=np.float64) for part in (state.rows, state.head))
        with np.errstate(over="ignore", invalid="ignore"):  # of runs that have diverged
            M, Q = direct_overlaps(
                np,
                self.structure.signals,
                self.edges,
                np.asarray(self.parameters["frame"], dtype=np.float64),
                rows,
            )
        means = {name: self.train_mean(loss, state) for name, loss in self.on_train.items()}
        return {"M": M, "Q": Q, "a": head, "train_risk": self.train_risk(state), **means}

    def train_risk(self, state: Weights) -> np.ndarray:
        return self.train_mean(self.structure.loss, state)

    def train_mean(self, loss: Loss, state: Weights) -> np.ndarray:
        """The mean of a loss over the data set of each run."""
        structure = self.structure.with_loss(loss)
        return np.asarray(
            _train_mean(structure, self.options, self.parameters, self.now, self.data, state)
        )

    def keep(self, state: Weights, index: np.ndarray) -> Any:
        if not self.options.shared:
            self.data = jax.tree.map(lambda leaf: leaf[index], self.data)
        return super().keep(state, index)

    @property
    def grain(self) -> int:
        return 1

    def bytes_of(self, runs: int) -> int:
        """What these runs take in memory, about: data sets, and working space."""
        p, k, n = self.structure.width, self.structure.signals, self.samples
        inputs = n * self.structure.sample.tokens.inputs_per_sample
        beside = (inputs * k + n * self.structure.sample.normals_per_sample) * self.dtype.itemsize
        data_set = inputs * self.dimension * self.stored.itemsize + beside
        a_run = (6 * p * (inputs + self.dimension) + 4 * n) * self.dtype.itemsize
        sets = 1 if self.options.shared else runs
        return (sets + 1) * data_set + runs * a_run + 4 * 8 * max(ROW_NUMBERS, self.dimension)

    def largest_group(self) -> int:
        limit = SHARE_OF_MEMORY * available_bytes()
        if jax.default_backend() == "cpu" and not self.options.shared:
            limit = min(limit, CPU_GROUP_BYTES)
        one = self.bytes_of(2) - self.bytes_of(1)
        return max(1, min(1 << 14, int((limit - self.bytes_of(1)) // one) + 1))


def check_memory(simulator: DirectFixedData) -> None:
    """Refuse what not even one run at a time has room for."""
    needed, free = simulator.bytes_of(1), available_bytes()
    if needed > free:
        raise checks.reject(
            "dimension",
            simulator.dimension,
            f"a data set of {simulator.samples} x {simulator.dimension} numbers in {simulator.stored.name} needs {needed / 2**30:.3g} GiB "
            f'with its working space, and {free / 2**30:.3g} GiB are free: take a smaller dimension or fewer samples, dtype="float32", '
            'or method="exact"',
        )


def check_range(simulator: DirectFixedData) -> None:
    """Refuse inputs that the half-width type does not hold."""
    spread, (low, high) = np.asarray(simulator.place.scale), HALF_RANGE
    if simulator.stored == np.float16 and not (spread.min() >= low and spread.max() <= high):
        fix = f"inputs have standard deviations from {spread.min():.3g} to {spread.max():.3g}, and it holds {low:g} to {high:g} well"
        raise checks.reject("dtype", simulator.stored.name, f'{fix}: take "float32"')


def _step_key(key: RandomKey, number: IntScalar) -> RandomKey:
    return step_key(jax.random.fold_in(key, 1), number)


@float64
@partial(jax.jit, static_argnums=(0, 1, 2))
def _draw_data(
    structure: Structure,
    samples: int,
    types: tuple[np.dtype, np.dtype],
    parameters: Parameters,
    place: Embedding,
    keys: RandomKeys,
) -> Data:
    """The data set of each key, its inputs in the first type and what goes with them in the second.

    Drawn in float64, also for float32: both precisions see the same data. What is stored is the data set: signals are those of the
    inputs as they were rounded, so that a teacher's labels are right in any type.
    """
    stored, dtype = types
    sample = structure.sample
    inputs = sample.tokens.inputs_per_sample * place.scale.shape[0]
    each = inputs + sample.normals_per_sample
    chunks = -(-samples * each // ROW_NUMBERS)
    rows = -(-samples // chunks)

    def chunk(key: RandomKey) -> Data:
        normals = normals_and_uniforms(key, rows * each, 0)[0].reshape(rows, each)
        draws = sample.draw(parameters, normals[:, inputs:])
        x = inputs_in_space(
            sample,
            parameters,
            normals[:, :inputs].reshape(rows, *sample.tokens.shape, -1),
            draws,
            place,
        ).astype(stored)
        signals = jnp.matmul(x[:, place.axes].astype(dtype), place.signals.T, precision=HIGHEST)
        return Data(x, signals.astype(dtype), as_dtype(sample.loss_argument(draws), dtype))

    def one(key: RandomKey) -> Data:
        key = jax.random.fold_in(key, 0)
        if chunks == 1:
            return chunk(key)
        parts = jax.lax.map(
            lambda number: chunk(jax.random.fold_in(key, number)), jnp.arange(chunks)
        )
        return jax.tree.map(
            lambda part: part.reshape(part.shape[0] * part.shape[1], *part.shape[2:])[
                : samples * (part.shape[1] // rows)
            ],
            parts,
        )

    return jax.lax.map(one, keys)


@float64
@partial(jax.jit, static_argnums=0)
def _first(samples: int, algorithm: Parameters, keys: RandomKeys) -> Bool[Numeric, "runs n"]:
    draw = jax.vmap(lambda key: normals_and_uniforms(jax.random.fold_in(key, 2), 0, samples)[1])
    return first_selection(algorithm, draw(keys))


def _product(
    rows: Float[Numeric, "p d"], x: Float[Numeric, "inputs d"]
) -> Float[Numeric, "inputs p"]:
    """Fields (n, p) of inputs (n, d); one row as a vector, which is faster."""
    x = x.astype(rows.dtype)
    if rows.shape[0] == 1:
        return jnp.matmul(x, rows[0], precision=HIGHEST)[:, None]
    return jnp.matmul(x, rows.T, precision=HIGHEST)


def weighted(h: Float[Numeric, "inputs p"], x: Float[Numeric, "inputs d"]) -> Float[Numeric, "p d"]:
    """h^T x, (p, d)."""
    x = x.astype(h.dtype)
    if h.shape[1] == 1:
        return jnp.matmul(h[:, 0], x, precision=HIGHEST)[None]
    return jnp.matmul(h.T, x, precision=HIGHEST)


def losses_on(
    structure: Structure,
    parameters: Parameters,
    data: Data,
    rows: Float[Numeric, "p d"],
    head: Float[Numeric, " p"],
) -> tuple[Float[Numeric, ""], tuple[Any, Any]]:
    """The mean loss over the data set, and dloss/dfields (inputs, p), dloss/dhead (samples, p)."""
    sample = structure.sample
    compute = jax.vmap(
        jax.value_and_grad(structure.loss, argnums=(0, 2)), in_axes=(0, 0, None, 0, None)
    )
    fields, signals = (
        sample.tokens.by_sample(_product(rows, data.inputs)),
        sample.tokens.by_sample(data.signals),
    )
    loss, (h, head_h) = compute(fields, signals, head, data.given, parameters)
    # a user's loss may hold float64 constants; a float32 simulation stays one, but for the one sum that is compared with a threshold
    return jnp.mean(loss, dtype=jnp.float64), (
        sample.tokens.by_input(h).astype(rows.dtype),
        head_h.astype(rows.dtype),
    )


def sums_on(
    structure: Structure,
    parameters: Parameters,
    data: Data,
    rows: Float[Numeric, "p d"],
    head: Float[Numeric, " p"],
    selected: Numeric | None,
) -> data_gradients.Sums:
    """What a step of one run needs of its data set, in two reads; selected: which samples are in use, None for all."""
    risk, (h, head_h) = losses_on(structure, parameters, data, rows, head)
    if selected is not None:
        h = jnp.where(structure.sample.tokens.repeat(selected)[:, None], h, 0)
        head_h = jnp.where(selected[:, None], head_h, 0)
    return data_gradients.Sums(risk, weighted(h, data.inputs), jnp.sum(head_h, axis=0))


def _over_runs(options: Options, function: Callable[..., Any], data: Data, *runs: Any) -> Any:
    """function(data, ...) for every run."""
    if options.together:
        return jax.vmap(function, in_axes=(None if options.shared else 0, *[0] * len(runs)))(
            data, *runs
        )
    return jax.lax.map(lambda one: function(*one), (data, *runs))


@float64
@partial(jax.jit, static_argnums=(0, 1))
def _train_mean(
    structure: Structure,
    options: Options,
    parameters: Parameters,
    now: Scalar,
    data: Data,
    state: Weights,
) -> Any:
    return _means(
        structure, options, as_dtype(values_at(parameters, now), state.rows.dtype), data, state
    )


def _means(
    structure: Structure, options: Options, numbers: Parameters, data: Data, state: Weights
) -> Any:
    """The mean loss of each run over its data set."""
    sample = structure.sample
    known = (
        data_gradients.fields(options.kernel, data.inputs, state.rows) if options.kernel else None
    )

    def one(
        data: Data, rows: Float[Numeric, "p d"], head: Float[Numeric, " p"], known: PyTree
    ) -> Any:
        fields = sample.tokens.by_sample(_product(rows, data.inputs) if known is None else known)
        values = jax.vmap(structure.loss, in_axes=(0, 0, None, 0, None))(
            fields, sample.tokens.by_sample(data.signals), head, data.given, numbers
        )
        return jnp.mean(values, axis=0, dtype=jnp.float64)

    return _over_runs(options, one, data, state.rows, state.head, known)


class Watching(NamedTuple):
    """What is noted after each step, if anything, and where the blocks end."""

    see: See | None
    edges: tuple[int, ...]

    def noted(
        self,
        structure: Structure,
        parameters: Parameters,
        given: PyTree,
        seen: PyTree,
        made: IntScalar,
        state: Weights,
    ) -> Any:
        """What one run has been seen to do."""
        if self.see is None:
            return seen
        rows, head = state.rows.astype(jnp.float64), state.head.astype(jnp.float64)
        M, Q = direct_overlaps(jnp, structure.signals, self.edges, parameters["frame"], rows)
        return self.see(given, seen, made, {"M": M, "Q": Q, "a": head})


@float64
@partial(jax.jit, static_argnums=(0, 1, 2))
def _advance_on_data(
    structure: Structure,
    options: Options,
    watching: Watching,
    parameters: Parameters,
    algorithm: Parameters,
    dimension: Scalar,
    data: Data,
    state: Weights,
    keys: RandomKeys,
    since: IntScalar,
    end: IntScalar,
    seen: PyTree = None,
    given: PyTree = None,
) -> tuple[Weights, Int[Numeric, " runs"], Any]:
    """All runs from step `since` to step `end`, for each the last step at which it was finite, and what was seen."""

    def step(
        number: IntScalar,
        data: Data,
        state: Weights,
        good: IntScalar,
        seen: PyTree,
        key: RandomKey,
        known: data_gradients.Sums | None = None,
    ) -> tuple[Weights, Int[Numeric, ""], Any]:
        numbers = (parameters, algorithm, dimension)
        state = fixed_data_step(
            structure, options, *numbers, data, state, _step_key(key, number), number, known
        )
        limit = jnp.asarray(LARGEST if state.rows.dtype == jnp.float64 else 1e15, state.rows.dtype)
        fine = jnp.all(jnp.abs(state.rows) < limit) & jnp.all(jnp.abs(state.head) < limit)
        return (
            state,
            jnp.where(fine, number + 1, good),
            watching.noted(structure, parameters, given, seen, number + 1, state),
        )

    def known_sums(
        number: IntScalar, state: Weights, careful: bool
    ) -> tuple[data_gradients.Sums | None, Any]:
        """Sums of all runs where a kernel makes them, and whether a run on the sphere may have diverged."""
        if not options.kernel:
            return None, False
        numbers, rates = numbers_of_step(parameters, algorithm, number)
        numbers = as_dtype(numbers, state.rows.dtype)
        found = data_gradients.sums(
            structure, options.kernel, numbers, data, state.rows, state.head, state.selected
        )
        fixes_norms = structure.constraint.fixes_norms
        if found.risk is not None or not fixes_norms:
            return found._replace(risk=found.risk if fixes_norms else None), False
        # all samples are read only where a run may have diverged, which is seldom; a percent more than the step itself asks for
        share = 1.01 * rates["lr"] / (rates["divisor"] * data.inputs.shape[1])
        far = jnp.any(_far(share.astype(state.rows.dtype) * found.gradient))
        if not careful:
            return found._replace(risk=jnp.zeros_like(state.first_risk)), far
        means = partial(_means, structure, options, numbers, data, state)
        return found._replace(
            risk=jax.lax.cond(far, means, lambda: jnp.zeros_like(state.first_risk))
        ), False

    if options.together:

        def all_runs(careful: bool, number: IntScalar, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            now, before = carry
            known, far = known_sums(number, now[0], careful)
            return _over_runs(options, partial(step, number), data, *now, keys, known), before | far

        def stretch(begin: IntScalar, last: IntScalar, now: Any) -> Any:
            return jax.lax.fori_loop(begin, last, partial(all_runs, True), (now, False))[0]

        begun = (state, jnp.broadcast_to(since, keys.shape), seen)
        if not options.kernel:
            return stretch(since, end, begun)

        def some_steps(carry: tuple[Any, Any]) -> tuple[Any, Any]:
            number, now = carry
            last = jnp.minimum(number + STRETCH, end)

            def tried() -> tuple[Any, Any]:
                return jax.lax.fori_loop(
                    0,
                    STRETCH,
                    lambda k, carry: all_runs(False, number + k, carry),
                    (now, jnp.asarray(False)),
                )

            # on a GPU whatever decides what is computed next waits for the host: that is asked once in a stretch of steps
            found, doubt = jax.lax.cond(
                last - number == STRETCH, tried, lambda: (now, jnp.asarray(True))
            )
            return last, jax.lax.cond(doubt, partial(stretch, number, last, now), lambda: found)

        return jax.lax.while_loop(lambda carry: carry[0] < end, some_steps, (since, begun))[1]

    def one_run(
        data: Data, state: Weights, seen: PyTree, key: RandomKey
    ) -> tuple[Weights, Int[Numeric, ""], Any]:
        return jax.lax.fori_loop(
            since,
            end,
            lambda number, now: step(number, data, now[0], now[1], now[2], key),
            (state, since, seen),
        )

    return _over_runs(options, one_run, data, state, seen, keys)


def _far(move: Float[Numeric, "... p d"]) -> Bool[Numeric, "... p"]:
    """Whether rows on the sphere move further than its diameter."""
    return jnp.sum(move**2, axis=-1) > 4


def fixed_data_step(
    structure: Structure,
    options: Options,
    parameters: Parameters,
    algorithm: Parameters,
    dimension: Scalar,
    data: Data,
    state: Weights,
    key: RandomKey,
    number: IntScalar,
    known: data_gradients.Sums | None = None,
) -> Weights:
    """One step of one run: W <- W - lr/(b n) sum_mu s_mu dloss_mu/dW + sqrt(2 T lr/d) N(0, I), and the samples in use at the next.

    The sums over the samples may be known from a kernel.
    """
    rows, head, selected, first_risk = state
    parameters, algorithm = numbers_of_step(parameters, algorithm, number)
    parameters = as_dtype(parameters, rows.dtype)
    samples, dtype = data.inputs.shape[0] // structure.sample.tokens.inputs_per_sample, rows.dtype
    p = structure.width
    risk, gradient, head_gradient = (
        sums_on(structure, parameters, data, rows, head, selected) if known is None else known
    )
    share = (1 / (algorithm["divisor"] * samples)).astype(dtype)
    gradient, head_gradient = share * gradient, share * head_gradient
    kick = head_kick = None
    normals, uniforms = normals_and_uniforms(
        key, p * (rows.shape[1] + 1) if options.hot else 0, samples if options.selects else 0
    )
    if options.hot:
        noise = (kick_size(algorithm, dimension) * normals).astype(dtype)
        kick, head_kick = (
            noise[:-p].reshape(rows.shape),
            jnp.sqrt(algorithm["head_rate"].astype(dtype)) * noise[-p:],
        )
    lr, rate = (algorithm[name].astype(dtype) for name in ("lr", "head_rate"))
    stride = Stride(lr, rate, parameters["weight_decay"], structure)
    moved, head = stride.move(rows, head, (gradient, head_gradient), kick, head_kick)
    if structure.constraint.fixes_norms:
        moved = jnp.where(jnp.any(_far(lr * gradient)) & (risk > first_risk), jnp.nan, moved)
    if options.selects:
        selected = next_selection(algorithm, selected, uniforms)
    return Weights(moved, head, selected, first_risk)
