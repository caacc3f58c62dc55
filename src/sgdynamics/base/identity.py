"""Identities of values that outlive a process: plain JSON for data, content hashes for functions.

Two functions have the same identity if they compute the same thing: the same bytecode, constants
and names, equal default arguments, closure variables and global variables, recursively. A bound
method includes the object it is bound to, ``functools.partial`` its parts, an object its class and
its state (as ``pickle`` sees it), an array its content. Functions and classes of installed packages
are identified by name and version of the package.

A value without such content (an open file, a socket, a running generator) is marked as
unidentified, with a text that names it; a sweep with a store raises ValueError.
"""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import hashlib
import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.code_identity import (
    Json,
    canonical_json,
    code_identity,
    external_reads,
    globals_read,
    import_identity,
    is_library,
    library_identity,
    module_file_identity,
    package_version,
)

UNIDENTIFIED = "unidentified"  # key of the text that names an object without identity
SMALL_ARRAY = (
    64  # entries of an array that is written out, so that it equals a list of the same numbers
)
# entries of a namespace that do not change what a function or a class computes
COSMETIC = frozenset(
    (
        *(
            "__module__",
            "__name__",
            "__qualname__",
            "__doc__",
            "__dict__",
            "__weakref__",
            "__wrapped__",
        ),
        *(
            "__annotations__",
            "__annotate__",
            "__annotate_func__",
            "__annotations_cache__",
            "__type_params__",
        ),
        *(
            "__firstlineno__",
            "__static_attributes__",
            "__dataclass_fields__",
            "__dataclass_params__",
        ),
        *("__abstractmethods__", "_abc_impl"),
    )
)
LOCKS = ("_thread.lock", "_thread.RLock")  # they order threads, and do not change values
SLOT_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)
C_METHODS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)


def digest(value: object) -> str:
    """SHA-256 of the identity of a value, the same in every process and on every machine."""
    return hash_plain(plain(value))


def plain(value: object) -> Json:
    """The identity of a value as JSON.

    1 and 1.0 are equal, and so are a list and a small array of the same numbers.
    """
    if value is None or type(value) in (bool, str):
        return cast(Json, value)
    if type(value) in (int, float):
        return _number(cast(float, value))
    try:
        return _Walk().identify(value)
    except RecursionError:
        return {UNIDENTIFIED: f"a {_type_name(value)}, which is nested too deeply"}


def function_identity(function: Callable) -> dict[str, str]:
    """The record of a user's function or class.

    A name and a hash, which recognise but cannot run it.
    """
    record = plain(function)
    if isinstance(record, dict) and "function" in record:
        return cast(dict[str, str], record)
    return {"function": _name(function), **_hash_record(record)}


def object_identity(value: object) -> Mapping[str, Json]:
    """The identity of an object by its class and its state, whatever it records of itself."""
    return _Walk().object_identity(value)


def find_unidentified(identity: object) -> str | None:
    """The text that names the first object without identity, or None."""
    if isinstance(identity, Mapping):
        if isinstance(identity.get(UNIDENTIFIED), str):
            return identity[UNIDENTIFIED]
        identity = identity.values()
    elif not isinstance(identity, (list, tuple)):
        return None
    return next((text for text in map(find_unidentified, identity) if text is not None), None)


class _Walk:
    """One traversal of a value, with its position and the objects visited so far."""

    def __init__(self) -> None:
        self.path: list[str] = []  # how the present value is reached from the outermost function
        self.active: dict[int, int] = {}  # objects that contain the present one, with their depth
        self.finished: dict[
            int, tuple[object, Any]
        ] = {}  # with the object, so that its id stays its own
        self.exact = False  # inside functions and objects 1 and 1.0 differ

    def identify(self, value: object) -> Json:
        simple = self._simple(value)
        if simple is not NotImplemented:
            return simple
        if id(value) in self.finished:
            return self.finished[id(value)][1]
        if id(value) in self.active:
            return {"cycle": len(self.active) - self.active[id(value)]}
        self.active[id(value)] = len(self.active)
        try:
            identity = self._compound(value)
        finally:
            del self.active[id(value)]
        self.finished[id(value)] = (value, identity)
        return identity

    def _simple(self, value: object) -> Json:
        if value is None or isinstance(value, (bool, np.bool_)):
            return None if value is None else bool(value)
        if isinstance(value, str):
            return str(value)
        if isinstance(value, (int, np.integer)):
            return int(value)
        if isinstance(value, (float, np.floating)):
            number = _number(float(value))
            return (
                {"float": repr(float(value))} if self.exact and isinstance(number, int) else number
            )
        if isinstance(value, complex):
            return {"complex": [repr(value.real), repr(value.imag)]}
        if isinstance(value, (bytes, bytearray)):
            return {"bytes": hashlib.sha256(value).hexdigest()}
        return NotImplemented

    def _compound(self, value: object) -> Json:
        """Identify containers and arrays by content, the library's objects by their description.

        Functions follow by their code, and other objects by their state.
        """
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, jax.Array):
            return self._jax_array(value)
        if type(value).__module__.partition(".")[0] in ("xarray", "pandas"):
            return self._labelled_array(value)
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, (list, tuple)):
            return self._all(value)
        if isinstance(value, (set, frozenset)):
            return {"set": sorted(self._all(value), key=canonical_json)}
        if _is_described(value):
            with self._exactly(False):
                return self._library_object(value)
        with self._exactly(True):
            if callable(value):
                return self._function(value)
            if isinstance(value, types.ModuleType):
                return self._module(value)
            if hasattr(value, "__array__"):
                return self._foreign_array(value)
            return self._object(value)

    def _library_object(self, value: object) -> Json:
        """Identify an object of this library by what a result records of it."""
        describe = getattr(value, "describe", None)
        if describe is not None:
            return self.identify(describe())
        if dataclasses.is_dataclass(value):
            fields = {
                field.name: self.identify(getattr(value, field.name))
                for field in dataclasses.fields(value)
            }
            return {"dataclass": type(value).__name__, **fields}
        with self._exactly(True):
            return self._function(value) if callable(value) else self._object(value)

    def _all(self, values: Iterable[Any]) -> list[Any]:
        return [self.identify(value) for value in values]

    def _mapping(self, value: Mapping[Any, Any]) -> Json:
        if all(isinstance(name, str) for name in value):
            return {name: self._inside(f"entry {name!r}", entry) for name, entry in value.items()}
        return {"items": sorted((self._all(item) for item in value.items()), key=canonical_json)}

    def _array(self, value: np.ndarray) -> Json:
        if value.dtype == object or value.dtype.kind in "US":
            return self.identify(value.tolist())
        if value.ndim == 0 and value.dtype.kind in "biuf":
            return self.identify(value.item())
        if not self.exact and value.dtype.kind in "biu":
            value = value.astype(np.float64)
        if not self.exact and value.size <= SMALL_ARRAY and value.dtype.kind == "f":
            return self.identify(value.tolist())
        content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return {"array": content, "shape": list(value.shape), "dtype": value.dtype.str}

    def _jax_array(self, value: jax.Array) -> Json:
        if checks.is_traced(value):
            return self._without_identity(value)
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return {
                "key": str(value.dtype),
                "data": self._array(np.asarray(jax.random.key_data(value))),
            }
        return self._array(np.asarray(value))

    def _labelled_array(self, value: Any) -> Json:
        """Labelled arrays of xarray and pandas: values, labels and attributes."""
        if hasattr(value, "variables") or (hasattr(value, "dims") and hasattr(value, "coords")):
            own = (
                {}
                if hasattr(value, "variables")
                else {"values": self._array(value.values), "dims": list(value.dims)}
            )
            variables = (
                value.variables
                if hasattr(value, "variables")
                else {name: value[name].variable for name in value.coords}
            )
            contents = {
                str(name): [
                    list(variable.dims),
                    self._array(variable.values),
                    self.identify(variable.attrs),
                ]
                for name, variable in variables.items()
            }
            return {
                "labelled": contents,
                "coordinates": sorted(map(str, value.coords)),
                "attributes": self.identify(value.attrs),
                **own,
            }
        if hasattr(value, "__array__") and hasattr(value, "index"):
            labels = [
                np.asarray(getattr(value, name))
                for name in ("index", "columns")
                if hasattr(value, name)
            ]
            return {"labelled": self._array(np.asarray(value)), "labels": self._all(labels)}
        with self._exactly(True):
            return self._function(value) if callable(value) else self._object(value)

    def _foreign_array(self, value: Any) -> Json:
        """Arrays of other packages, such as tensors of PyTorch."""
        try:
            content = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        except Exception:
            return self._object(value)
        return {"type": _type_name(value), "content": self._array(content)}

    def _function(self, value: Callable[..., Any]) -> dict[str, Json]:
        """The record of a callable: its name, and the hash of all that it computes with."""
        with self._step(f"function {_name(value)!r}"):
            return {"function": _name(value), **_hash_record(self._callable_content(value))}

    def _callable_content(self, value: Callable[..., Any]) -> Json:
        library = library_identity(value)
        if library is not None:
            return library
        if isinstance(value, functools.partial):
            fields = {"function": value.func, "arguments": value.args, "keywords": value.keywords}
            return {
                "partial": {
                    name: self._inside(f"{name} of partial", field)
                    for name, field in fields.items()
                }
            }
        if isinstance(value, types.MethodType):
            return {
                "method": self.identify(value.__func__),
                "self": self._inside("the object it is bound to", value.__self__),
            }
        if isinstance(value, types.FunctionType):
            return self._python_function(value)
        if isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            owner = value.__self__
            if owner is None or isinstance(owner, types.ModuleType):
                return {"builtin": value.__qualname__, "module": getattr(owner, "__name__", None)}
            return {
                "method": value.__name__,
                "self": self._inside("the object it is bound to", owner),
            }
        if isinstance(value, C_METHODS):
            return {"method": value.__name__, "class": self.identify(value.__objclass__)}
        if isinstance(value, np.ufunc):
            return {"ufunc": value.__name__, "version": np.__version__}
        if isinstance(value, type):
            return self._class(value)
        if hasattr(
            value, "__wrapped__"
        ):  # jax.jit, functools.lru_cache, jax.custom_jvp with its rule
            state = self._namespace(getattr(value, "__dict__", {}))
            return {
                "wrapper": _type_name(value),
                "wrapped": self.identify(value.__wrapped__),
                "state": state,
            }
        return self._object(value)

    def _python_function(self, function: types.FunctionType) -> dict[str, Json]:
        code = function.__code__
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        closure = {name: cell.cell_contents for name, cell in cells.items() if _is_filled(cell)}
        content: dict[str, Any] = {
            "code": code_identity(code, function.__doc__),
            "closure": {
                name: self._inside(f"closure variable {name!r}", value)
                for name, value in closure.items()
                if not isinstance(value, types.ModuleType)
            },
            "globals": {},
            "defaults": [
                self._inside("a default argument", value) for value in function.__defaults__ or ()
            ],
            "keyword_defaults": {
                name: self._inside(f"the default of {name!r}", value)
                for name, value in (function.__kwdefaults__ or {}).items()
            },
            "attributes": self._namespace(vars(function)),
        }
        if is_library(
            function.__module__ or ""
        ):  # made by a package: its version stands for the globals
            return {
                **content,
                "library": function.__module__,
                "version": package_version(function.__module__),
            }
        for name, value in globals_read(function, closure):
            content["globals"][name] = self._inside(f"global variable {name!r}", value)
        for name in external_reads(code).imports:
            content["globals"][f"import {name}"] = import_identity(name)
        return content

    def _namespace(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: self._inside(f"attribute {name!r}", value)
            for name, value in values.items()
            if name not in COSMETIC and not isinstance(value, SLOT_DESCRIPTORS)
        }

    def _class(self, value: type) -> dict[str, Json]:
        members = {name: _function_of(member) for name, member in vars(value).items()}
        return {
            "class": value.__qualname__,
            "bases": self._all(value.__bases__),
            "members": self._namespace(members),
        }

    def _module(self, module: types.ModuleType) -> Json:
        if is_library(module.__name__):
            return {"module": module.__name__, "version": package_version(module.__name__)}
        return module_file_identity(
            module.__name__, getattr(module, "__file__", None)
        ) or self._without_identity(module)

    def _object(self, value: object) -> Mapping[str, Json]:
        """Any other object: its class and its state, as pickle takes them."""
        if _type_name(value) in LOCKS:
            return {"type": _type_name(value)}
        if isinstance(value, property):
            return {"property": self._all([value.fget, value.fset, value.fdel])}
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception:
            return self._without_identity(value)
        if isinstance(reduced, str):
            return {"global": f"{type(value).__module__}.{reduced}"}
        maker, arguments, state, *items = (*reduced, None, None, None)[:5]
        content = {
            "type": self.identify(type(value)),
            "maker": self.identify(maker),
            "arguments": self._all(cast(Iterable[Any], arguments or ())),
        }
        if (
            isinstance(state, tuple)
            and len(state) == 2
            and all(entry is None or isinstance(entry, dict) for entry in state)
        ):
            state = {**(state[0] or {}), **(state[1] or {})}  # of a class with slots
        content["state"] = (
            self._namespace(state)
            if isinstance(state, dict) and _has_names(state)
            else self.identify(state)
        )
        content["items"] = [
            None if group is None else self._all(cast(Iterable[Any], group)) for group in items
        ]
        return {"object": _type_name(value), **_hash_record(content)}

    def object_identity(self, value: object) -> Mapping[str, Json]:
        with self._exactly(True):
            return self._object(value)

    def _without_identity(self, value: object) -> dict[str, str]:
        *outer, inner = [*self.path, ""] if not self.path else self.path
        where = " of ".join([inner, *reversed(outer)]) if self.path else "a value"
        return {UNIDENTIFIED: f"{where} (a {_type_name(value)})"}

    def _inside(self, step: str, value: object) -> Json:
        with self._step(step):
            return self.identify(value)

    @contextmanager
    def _step(self, step: str) -> Iterator[None]:
        self.path.append(step)
        try:
            yield
        finally:
            self.path.pop()

    @contextmanager
    def _exactly(self, exact: bool) -> Iterator[None]:
        before, self.exact = self.exact, exact
        try:
            yield
        finally:
            self.exact = before


def hash_plain(identity: object) -> str:
    """SHA-256 of a value that is plain JSON already."""
    return hashlib.sha256(canonical_json(identity).encode()).hexdigest()


def _hash_record(content: object) -> dict[str, str]:
    """The hash of an identity; an object without identity inside it stays visible."""
    missing = find_unidentified(content)
    return {
        "sha256": hash_plain(content)[:32],
        **({} if missing is None else {UNIDENTIFIED: missing}),
    }


def _number(value: float) -> int | float | str:
    if isinstance(value, int):
        return value
    if not math.isfinite(value):
        return str(value)
    return int(value) if value.is_integer() else value


def _name(value: object) -> str:
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else type(value).__name__


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _has_names(state: Mapping[Any, Any]) -> bool:
    return all(isinstance(name, str) for name in state)


def _is_described(value: object) -> bool:
    """Whether the class of a value is this library's, or derived from one that describes itself."""
    own = type(value).__module__.partition(".")[0] == "sgdynamics"
    return own or any(
        base.__module__.partition(".")[0] == "sgdynamics" and "describe" in vars(base)
        for base in type(value).__mro__
    )


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _function_of(member: object) -> object:
    """The function inside a member of a class."""
    if isinstance(member, (staticmethod, classmethod)):
        return member.__func__
    return member.func if isinstance(member, functools.cached_property) else member
