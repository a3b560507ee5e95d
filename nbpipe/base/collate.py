"""Stack samples into a batch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError, ArgumentTypeError
from .checks import close_unawaited, holds_coroutine, refuse_coroutine
from .fitting import (
    floats_as,
    overflow,
    pad_as,
    pad_for_tensors,
    refuse_changes,
    refuse_rounded,
    tensor_as,
)
from .format import shortened
from .tree import MAX_DEPTH, children, is_tensor, is_tensor_collection, rebuild, words_of

_WAY_OUT = "collate=fn gathers a list of samples your way (collate=list keeps it as it is)"
_SHOWN = 8  # names shown in a message


class BatchMemory(Protocol):
    """Allocates the arrays and tensors that samples are stacked into."""

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """Return an array without values; None where it has no memory for one."""

    def tensor(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return a tensor without values; None where it has no memory for one."""


def collate(
    samples: Sequence[Any],
    *,
    names: Sequence[str] | None = None,
    dtype: Any = None,
    pad: Any = None,
    memory: BatchMemory | None = None,
) -> Any:
    """Stack B samples of one nesting into a batch of the same nesting.

    | in each sample | in the batch |
    |---|---|
    | numpy array (...) | numpy array (B, ...) |
    | torch tensor (...) | torch tensor (B, ...), on the same device |
    | number, bool | numpy array (B,): int64, float64, bool; numpy scalars keep their dtype |
    | number, bool in a sample that holds a tensor | torch tensor (B,) on the CPU, same dtypes |
    | dict, tuple, named tuple, list, dataclass | the same, of batches |
    | TensorDict, tensorclass | the same, with batch size (B, ...) |
    | str, bytes, None and everything else | list of B |

    A batch shares no memory with the arrays and tensors of its samples. Arrays stay arrays beside
    tensors, and so do numbers of a dtype that torch does not have.

    Args:
        samples: B samples, at least one.
        names: makes a dict of the fields of samples that are tuples.
        dtype: floating dtype to which all that is floating is cast: "float32", a numpy or a
            torch dtype; integers and bools stay as they are.
        pad: value with which arrays and tensors of different shapes, but as many dimensions,
            are filled at the end of every axis on which they differ.
        memory: allocates the batch; None leaves that to numpy and torch.

    Raises:
        ArgumentError: the samples do not fit together; the message names the field.
        ArgumentTypeError: an option of a wrong type.
    """
    if not isinstance(samples, list):
        samples = list(samples)
    if not samples:
        raise ArgumentError("a batch must have at least 1 sample, got none")
    check_options(names, pad=pad)
    how = _How(_floating(dtype), pad, _holds_tensor(samples[0], 0), memory)
    if names is None:
        return _gather(samples, how, "sample", 0)
    columns = _columns(samples, tuple(names))
    return {
        name: _gather(column, how, f"field {name!r}", 1)
        for name, column in zip(names, columns, strict=True)
    }


def check_options(names: Any = None, dtype: Any = None, pad: Any = None) -> None:
    """Check the options of `collate` before there are samples.

    Raises:
        ArgumentError: names that are equal, or none; a dtype that is not floating.
        ArgumentTypeError: names that are no strings, a `pad` that is no number.
    """
    if names is not None:
        _check_names(names)
    if pad is not None and not isinstance(pad, int | float | complex | np.generic):
        raise ArgumentTypeError(f"pad must be a number, got {pad!r}; {_WAY_OUT}")
    _floating(dtype)


@dataclass(frozen=True, slots=True)
class _How:
    floating: str | None  # name of the dtype of all that is floating
    pad: Any
    tensors: bool  # numbers become tensors
    memory: BatchMemory | None  # allocates arrays and tensors

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """Return an array to stack into; None where numpy is to make it."""
        return None if self.memory is None else self.memory.array(shape, dtype)


def _holds_tensor(sample: Any, depth: int) -> bool:
    """Return whether a leaf of a sample is a torch tensor."""
    if depth > MAX_DEPTH or sys.modules.get("torch") is None:
        return False
    kind = _kind(sample)
    if kind in ("mapping", "sequence", "dataclass"):
        return any(_holds_tensor(value, depth + 1) for _, value in children(sample) or ())
    return kind == "tensor"


def _gather(samples: list[Any], how: _How, where: str, depth: int) -> Any:
    kinds = set(map(type, samples))
    kind = _kind(samples[0])
    if len(kinds) > 1:
        _check_alike(samples, kind, where)
    if kind == "array":
        _refuse_masks(kinds, where)
        return _stack_arrays(samples, how, where)
    if kind in ("number", "bool"):
        return _stack_numbers(samples, kinds, how, where)
    if kind == "tensor":
        return _stack_tensors(samples, how, where)
    if kind == "collection":
        return _stack_collections(samples, how, where)
    if kind != "leaf":
        return _gather_nodes(samples, how, where, depth)
    if holds_coroutine(samples):
        given = list(filter(lambda sample: holds_coroutine([sample]), samples))
        any(map(close_unawaited, given[1:]))
        refuse_coroutine(where, given[0])
    _refuse_sparse(samples[0], where)
    return samples.copy()


def _kind(value: Any) -> str:
    known = _KINDS.get(type(value))
    if known is not None:
        return known
    if is_tensor(value):
        return "tensor"
    if is_tensor_collection(value):
        return "collection"
    for kind, name in _FAMILIES:
        if isinstance(value, kind):
            return name
    return "leaf" if children(value) is None else "dataclass"


def _check_alike(samples: list[Any], kind: str, where: str) -> None:
    for number, sample in enumerate(samples):
        if _kind(sample) != kind or (kind == "dataclass" and type(sample) is not type(samples[0])):
            raise ArgumentError(
                f"{where}: samples must be of one type to be stacked, got "
                f"{type(samples[0]).__name__} in sample 0 and {type(sample).__name__} in sample "
                f"{number}; convert them alike before, or {_WAY_OUT}"
            )


_FAMILIES: tuple[tuple[type, str], ...] = (  # the first that fits
    (str, "leaf"),
    (bytes, "leaf"),
    (np.ndarray, "array"),
    (np.bool_, "bool"),
    (int, "number"),
    (float, "number"),
    (complex, "number"),
    (np.generic, "number"),
    (Mapping, "mapping"),
    (list, "sequence"),
    (tuple, "sequence"),
)
_KINDS: dict[type, str] = {
    bool: "bool",
    type(None): "leaf",
    dict: "mapping",
    **{kind: name for kind, name in _FAMILIES if kind is not Mapping},
}


# -- numbers, arrays, tensors ----------------------------------------------------------------------


def _stack_numbers(numbers: list[Any], kinds: set[type], how: _How, where: str) -> Any:
    dtype: Any = None  # numpy's own scalars say it themselves
    if kinds <= {int, float}:
        dtype = np.int64 if kinds == {int} else np.float64
    batch = _array_of_numbers(numbers, kinds, dtype, where)
    floating = how.floating is not None and batch.dtype.kind == "f"
    tensor = _tensor_or_none(batch) if how.tensors else None
    if tensor is not None:
        wanted = _torch_floating(how, sys.modules["torch"]) if floating else tensor.dtype
        return tensor_as(tensor, wanted, where)
    return floats_as(batch, _numpy_floating(how), where) if floating else batch


def _array_of_numbers(numbers: list[Any], kinds: set[type], dtype: Any, where: str) -> NDArray[Any]:
    if any(issubclass(kind, np.datetime64 | np.timedelta64) for kind in kinds):
        _common_dtype([np.asarray(number) for number in numbers], where)  # else dates are changed
    try:
        batch = np.array(numbers, dtype=dtype)
    except OverflowError as error:
        raise _too_large(numbers, where) from error
    if batch.dtype.kind == "O":
        raise _too_large(numbers, where)
    if batch.dtype.kind == "f" and all(issubclass(kind, int | np.integer) for kind in kinds):
        _refuse_rounding({np.asarray(number).dtype for number in numbers}, batch.dtype, where)
    if len(kinds) > 1 and batch.dtype.kind in "fc":
        refuse_rounded(numbers, batch.real.tolist(), batch.dtype, where)
    return batch


def _refuse_rounding(dtypes: set[np.dtype[Any]], common: np.dtype[Any], where: str) -> None:
    """Refuse integers that numpy would make floats of, for want of an integer that holds all."""
    if common.kind == "f" and all(dtype.kind in "biu" for dtype in dtypes):
        names = " and ".join(sorted(map(str, dtypes)))
        raise ArgumentError(
            f"{where}: integers must have an integer dtype that holds all of them to be stacked, "
            f"got {names}, of which floats would be made; convert them alike before, or {_WAY_OUT}"
        )


def _tensor_or_none(batch: NDArray[Any]) -> Any:
    """Return a tensor with the memory of `batch`; None: torch has no such dtype."""
    torch: Any = sys.modules["torch"]
    try:
        return torch.from_numpy(batch)
    except TypeError:
        return None


def _too_large(numbers: list[Any], where: str) -> ArgumentError:
    return ArgumentError(
        f"{where}: ints must fit int64 to be stacked, got {max(numbers, key=abs)!r}; "
        f"give float(value) or str(value) instead, or {_WAY_OUT}"
    )


def _stack_arrays(arrays: list[Any], how: _How, where: str) -> NDArray[Any]:
    dtype = _common_dtype(arrays, where)
    if how.floating is not None and dtype.kind == "f":
        dtype = _numpy_floating(how)
        refuse_changes(arrays, dtype, where)
    shapes = [array.shape for array in arrays]
    try:
        with np.errstate(all="ignore", over="raise"):
            if shapes.count(shapes[0]) == len(shapes):
                batch = how.array((len(arrays), *shapes[0]), dtype)
                if batch is None:
                    return np.array(arrays, dtype=dtype)
                return np.stack([*map(np.asarray, arrays)], out=batch, casting="unsafe")
            return _padded(arrays, dtype, _padded_shape(shapes, how, where), how, where)
    except FloatingPointError:
        raise overflow(arrays, dtype, where) from None


def _padded(
    arrays: list[Any], dtype: np.dtype[Any], shape: tuple[int, ...], how: _How, where: str
) -> NDArray[Any]:
    pad, shape = pad_as(how.pad, dtype, where), (len(arrays), *shape)
    batch = how.array(shape, dtype)
    if batch is None:
        batch = np.empty(shape, dtype)
    batch[...] = pad
    for row, array in zip(batch, arrays, strict=True):
        row[tuple(map(slice, array.shape))] = array
    return batch


def _refuse_masks(kinds: set[type], where: str) -> None:
    if any(issubclass(kind, np.ma.MaskedArray) for kind in kinds):
        raise ArgumentError(
            f"{where}: arrays must be without masks to be stacked, got a MaskedArray; give data "
            "and mask as two fields, or collate=np.ma.stack"
        )


def _refuse_sparse(sample: object, where: str) -> None:
    sparse: Any = sys.modules.get("scipy.sparse")
    if sparse is not None and sparse.issparse(sample):
        raise ArgumentError(
            f"{where}: arrays must be dense to be stacked, got a {type(sample).__name__} of scipy; "
            f"convert with its toarray() before, give collate=scipy.sparse.vstack, or {_WAY_OUT}"
        )


def _refuse_layouts(tensors: list[Any], where: str) -> None:
    torch: Any = sys.modules["torch"]
    for tensor in tensors:
        if tensor.is_nested:
            raise ArgumentError(
                f"{where}: tensors must have one shape to be stacked, got a nested tensor; take it "
                f"apart with its unbind() before, or {_WAY_OUT}"
            )
        if tensor.layout not in (torch.strided, torch.sparse_coo):
            raise ArgumentError(
                f"{where}: tensors must be dense or of layout sparse_coo to be stacked, got "
                f"{str(tensor.layout).removeprefix('torch.')}; convert with its to_dense() or "
                f"to_sparse_coo() before, or {_WAY_OUT}"
            )


def _stack_collections(samples: list[Any], how: _How, where: str) -> Any:
    """Stack TensorDicts, or tensorclasses, as torch does."""
    torch: Any = sys.modules["torch"]
    try:
        batch = torch.stack(samples)
    except (RuntimeError, KeyError) as error:
        raise ArgumentError(
            f"{where}: {type(samples[0]).__name__} samples must have the same keys and shapes to "
            f"be stacked: {shortened(str(error))}; make dicts of them with their to_dict() before, "
            f"for which pad=value works, or {_WAY_OUT}"
        ) from error
    return batch if how.floating is None else _cast(batch, how, where)


def _cast(node: Any, how: _How, where: str) -> Any:
    if is_tensor(node):
        floating = node.is_floating_point()
        return (
            tensor_as(node, _torch_floating(how, sys.modules["torch"]), where) if floating else node
        )
    held = children(node) if is_tensor_collection(node) else None
    if held is None:
        return node
    return rebuild(node, [_cast(value, how, f"{where}[{key!r}]") for key, value in held])


def _stack_tensors(tensors: list[Any], how: _How, where: str) -> Any:
    torch: Any = sys.modules["torch"]
    _refuse_layouts(tensors, where)
    dtypes = {tensor.dtype for tensor in tensors}
    dtype = _common_torch(dtypes, where)
    if how.floating is not None and dtype.is_floating_point:
        dtype = _torch_floating(how, torch)
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if len(dtypes) > 1:
        tensors = [tensor_as(tensor, dtype, where) for tensor in tensors]
    if shapes.count(shapes[0]) == len(shapes):
        batch = _tensor_for(tensors, shapes[0], dtype, how)
        if batch is None:
            return tensor_as(torch.stack(tensors), dtype, where)
        np.stack([*map(words_of, tensors)], out=words_of(batch))
        return batch
    shape = _padded_shape(shapes, how, where)
    if tensors[0].layout != torch.strided:
        raise ArgumentError(
            f"{where}: tensors must be dense to be padded, got layout sparse_coo; convert with its "
            f"to_dense() before, or {_WAY_OUT}"
        )
    pad = pad_for_tensors(how.pad, dtype, where)
    batch = _tensor_for(tensors, shape, dtype, how)
    if batch is None:
        batch = tensors[0].new_full((len(tensors), *shape), pad, dtype=dtype)
    else:
        batch.fill_(pad)
    for row, tensor in zip(batch, tensors, strict=True):
        row[tuple(map(slice, tensor.shape))] = tensor_as(tensor, dtype, where)
    return batch


def _tensor_for(tensors: list[Any], shape: tuple[int, ...], dtype: Any, how: _How) -> Any:
    """Return a tensor to stack plain tensors of one dtype into; None where torch is to make it."""
    if how.memory is None or not all(_is_plain(tensor, dtype) for tensor in tensors):
        return None
    return how.memory.tensor((len(tensors), *shape), dtype)


def _is_plain(tensor: Any, dtype: Any) -> bool:
    """Return whether the memory of a tensor on the host holds its values, and nothing else does."""
    torch: Any = sys.modules["torch"]
    plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided
    special = tensor.requires_grad or tensor.is_conj() or tensor.is_neg()
    return plain and tensor.dtype == dtype and tensor.device.type == "cpu" and not special


def _common_torch(dtypes: set[Any], where: str) -> Any:
    torch: Any = sys.modules["torch"]
    try:
        return functools.reduce(torch.promote_types, dtypes)
    except RuntimeError:
        names = " and ".join(sorted(map(str, dtypes)))
        raise ArgumentError(
            f"{where}: tensors must have dtypes that torch has one for to be stacked, got {names}; "
            f"convert them alike before, or {_WAY_OUT}"
        ) from None


def _common_dtype(arrays: list[Any], where: str) -> np.dtype[Any]:
    dtypes = [array.dtype for array in arrays]
    first: np.dtype[Any] = dtypes[0]
    if dtypes.count(first) == len(dtypes):
        if first.kind == "O":
            raise _not_numbers("an object array", where)
        return first
    families = {"number" if dtype.kind in "biufc" else dtype.kind for dtype in dtypes}
    if len(families) > 1 or "O" in families:
        other = next(i for i, dtype in enumerate(dtypes) if dtype != first)
        raise _not_numbers(f"{first} in sample 0 and {dtypes[other]} in sample {other}", where)
    try:
        common = np.result_type(*dtypes)
    except TypeError:  # durations of years and of days
        other = next(i for i, dtype in enumerate(dtypes) if dtype != first)
        got = f"{first} in sample 0 and {dtypes[other]} in sample {other}"
        raise _not_numbers(got, where) from None
    _refuse_rounding(set(dtypes), common, where)
    refuse_changes(arrays, common, where)
    return common


def _not_numbers(got: str, where: str) -> ArgumentError:
    return ArgumentError(
        f"{where}: samples must have one kind of dtype, and not object, to be stacked, got {got}; "
        f"build them with a dtype, or {_WAY_OUT}"
    )


def _padded_shape(shapes: list[tuple[int, ...]], how: _How, where: str) -> tuple[int, ...]:
    """Return the shape that holds all; refuse where no padding was given."""
    ndims = set(map(len, shapes))
    if how.pad is not None and len(ndims) == 1:
        return tuple(map(max, zip(*shapes, strict=True)))
    first = shapes[0]
    other = next(i for i, shape in enumerate(shapes) if shape != first)
    pad = "pad=value fills them up, " if len(ndims) == 1 else ""
    raise ArgumentError(
        f"{where}: samples must have one {'shape' if len(ndims) == 1 else 'number of axes'} to "
        f"be stacked, got {first} in sample 0 and {shapes[other]} in sample {other}; "
        f"{pad}{_WAY_OUT}"
    )


# -- nodes -----------------------------------------------------------------------------------------


def _gather_nodes(samples: list[Any], how: _How, where: str, depth: int) -> Any:
    if depth >= MAX_DEPTH:
        raise ArgumentError(
            f"samples must be nested at most {MAX_DEPTH} levels deep, got more; does a container "
            f"contain itself? {_WAY_OUT}"
        )
    first = samples[0]
    keys = [key for key, _ in children(first) or ()]
    if isinstance(first, Mapping):
        columns = _mapping_columns(samples, where)
    elif isinstance(first, list | tuple):
        columns = _sequence_columns(samples, where)
    else:
        columns = [[getattr(sample, name) for sample in samples] for name in keys]
    named = not isinstance(first, Mapping) and isinstance(next(iter(keys), 0), str)
    fields = [f"{where}.{key}" if named else f"{where}[{key!r}]" for key in keys]
    parts = zip(columns, fields, strict=True)
    return rebuild(first, [_gather(column, how, field, depth + 1) for column, field in parts])


def _mapping_columns(samples: list[Any], where: str) -> list[list[Any]]:
    """Return the values of each key, in the order of the first sample's keys."""
    first = samples[0].keys()
    for number, sample in enumerate(samples):
        if sample.keys() != first:
            missing, more = first - sample.keys(), sample.keys() - first
            said = [f"no {_listed(missing)}"] if missing else []
            said += [f"{_listed(more)} too"] if more else []
            raise ArgumentError(
                f"{where}: dicts must have the same keys to be stacked, got {_listed(first)} in "
                f"sample 0 and {', '.join(said)} in sample {number}; give every sample the same "
                f"keys, or {_WAY_OUT}"
            )
    return [[sample[key] for sample in samples] for key in first]


def _sequence_columns(samples: list[Any], where: str) -> list[list[Any]]:
    try:
        return list(map(list, zip(*samples, strict=True)))
    except ValueError as error:
        first = samples[0]
        number = next(i for i, sample in enumerate(samples) if len(sample) != len(first))
        raise ArgumentError(
            f"{where}: samples must have one length to be stacked, got {_count(first)} in "
            f"sample 0 and {_count(samples[number])} in sample {number}; make arrays of them and "
            f"give pad=value, or {_WAY_OUT}"
        ) from error


def _count(sample: list[Any] | tuple[Any, ...]) -> str:
    return f"{type(sample).__name__} of {len(sample)}"


def _listed(keys: Iterable[Any]) -> str:
    names = sorted(map(repr, keys))
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _columns(samples: list[Any], names: tuple[str, ...]) -> list[list[Any]]:
    """Take tuples apart into one column for each name."""
    for number, sample in enumerate(samples):
        if not isinstance(sample, tuple | list) or len(sample) != len(names):
            got = type(sample).__name__
            got = f"{got} of {len(sample)}" if isinstance(sample, tuple | list) else got
            raise ArgumentError(
                f"with names={names!r} each sample must be a tuple of {len(names)} fields, got "
                f"{got} in sample {number}; dicts keep the names of their fields by themselves"
            )
    return [list(column) for column in zip(*samples, strict=True)]


# -- options ---------------------------------------------------------------------------------------


def _check_names(names: Any) -> None:
    if isinstance(names, str) or not isinstance(names, Sequence) or not names:
        raise ArgumentTypeError(
            f"names must be a tuple of field names, got {names!r}; for example "
            "names=('input', 'target')"
        )
    if not all(isinstance(name, str) for name in names):
        raise ArgumentTypeError(f"names must be strings, got {names!r}")
    if len(set(names)) < len(names):
        raise ArgumentError(f"names must differ from one another, got {names!r}")


def _floating(dtype: Any) -> str | None:
    """Return the name of a floating dtype of numpy or torch."""
    if dtype is None:
        return None
    name = str(dtype) if type(dtype).__module__ == "torch" else dtype
    name = name.removeprefix("torch.") if isinstance(name, str) else name
    if isinstance(name, str) and name == "bfloat16":  # torch has it, numpy has not
        return name
    try:
        known = np.dtype(name)
    except (TypeError, ValueError):
        known = None
    if known is None or known.kind != "f":
        raise ArgumentError(
            f"dtype must be a floating dtype such as 'float32', got {dtype!r}; it casts what is "
            "floating only, other types are converted with map"
        )
    return known.name


def _numpy_floating(how: _How) -> np.dtype[Any]:
    if how.floating == "bfloat16":
        raise ArgumentError(
            "dtype must be one that numpy has where samples are arrays or floats, got 'bfloat16'; "
            "turn them into torch tensors before, or cast on the device"
        )
    return np.dtype(how.floating or "float64")


def _torch_floating(how: _How, torch: Any) -> Any:
    dtype = getattr(torch, how.floating or "", None)
    if dtype is None:
        raise ArgumentError(f"dtype must be one that torch has, got {how.floating!r}")
    return dtype
