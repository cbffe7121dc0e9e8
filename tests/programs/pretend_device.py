"""Run scripts on a pretend accelerator: `pretend_device.py RESULTS.json train.py --flags ... + predict.py --flags ...`.

Its tensors lie on the CPU and say that they are on `pretend:0`. An operation on tensors of both places fails, as on a
GPU. What would make the host wait for the device is counted. RESULTS.json has for each script its error, if any, and
`waits`: {"<kind> <file>:<line>": count}. Built on torch's backends in Python, an experimental interface (torch 2.13).
"""

import collections
import importlib.util
import itertools
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

sys.path.append(str(Path(__file__).parent.parent))
from support.figures import without_figures
from support.in_process import process_state_kept

backend_registration._setup_privateuseone_for_python_backend("pretend")
os.environ["ACCELERATE_TORCH_DEVICE"] = "pretend:0"

READS_A_NUMBER = ("nonzero", "masked_select", "bincount", "_local_scalar_dense", "unique")  # parts of operators' names
JOINS = ("aten.cat.default", "aten.stack.default")  # which take no number of the CPU either
PACKAGES = ("runtime", "unet", "tasks", "data_utils", "inference", "train_utils", "train.py", "predict.py")
waits: collections.Counter[str] = collections.Counter()


class OnDevice(torch.Tensor):
    """A tensor that says it is on the device."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __new__(cls, inner: torch.Tensor):
        self = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device("pretend", 0),
        )
        self.inner = inner
        return self

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


def count_wait(kind: str) -> None:
    """At the innermost line of the project that is being run."""
    frame, root = sys._getframe(1), os.getcwd()
    while frame is not None:
        file = os.path.relpath(frame.f_code.co_filename, root)
        if file.startswith(PACKAGES):
            break
        frame = frame.f_back
    waits[f"{kind} {file}:{frame.f_lineno}" if frame is not None else kind] += 1


def run(func, args: tuple, kwargs: dict):
    """An operator on tensors of the device, or on its way to or from it."""
    if torch.is_inference_mode_enabled() and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), "CompositeImplicitAutograd"
    ):
        with Dispatch():
            return func.decompose(*args, **kwargs)
    tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    on_device = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
    device = kwargs.get("device")
    is_asked_for = device is not None and torch.device(device).type == "pretend"
    if not on_device and not is_asked_for:
        return func(*args, **kwargs)
    name, stays = str(func), True
    if name in ("aten._to_copy.default", "aten.copy_.default"):
        source = args[name == "aten.copy_.default"]
        stays = isinstance(args[0], OnDevice) if name == "aten.copy_.default" else device is None or is_asked_for
        is_blocking = not kwargs.get("non_blocking", len(args) > 2 and args[2])
        if isinstance(source, OnDevice) != stays and is_blocking:
            count_wait("upload" if stays else "download")
    elif any(part in name for part in READS_A_NUMBER):
        count_wait(name)
    elif name in ("aten.index.Tensor", "aten.index_put.default", "aten.index_put_.default"):
        indices = [index for index in args[1] if index is not None]
        if any(index.dtype == torch.bool for index in indices):
            count_wait("boolean index")
        if not all(isinstance(index, OnDevice) for index in indices):
            count_wait("upload of an index")
    else:
        _check_places(func, name, args, tensors, on_device)
    return _computed(func, args, kwargs, on_device, stays and "_local_scalar_dense" not in name)


def _check_places(func, name: str, args: tuple, tensors: list, on_device: list) -> None:
    elsewhere = [tensor for tensor in tensors if not isinstance(tensor, OnDevice)]
    if name in JOINS:
        strangers = elsewhere
    else:  # a number of the CPU may be an operand, not what is written to
        strangers = [t for t in elsewhere if t.ndim or (t is args[0] and func._schema.is_mutable)]
    if on_device and strangers:
        raise RuntimeError(f"{name}: tensors on pretend:0 and cpu")


def _computed(func, args: tuple, kwargs: dict, on_device: list, stays: bool):
    inner_args, inner_kwargs = tree_map(lambda x: x.inner if isinstance(x, OnDevice) else x, (args, kwargs))
    if kwargs.get("device") is not None:
        inner_kwargs["device"] = "cpu"
    out = func(*inner_args, **inner_kwargs)
    if not stays:
        return out
    known = {id(tensor.inner): tensor for tensor in on_device}

    def wrapped(value):
        if not isinstance(value, torch.Tensor) or isinstance(value, OnDevice):
            return value
        return known[id(value)] if id(value) in known else OnDevice(value)

    return return_and_correct_aliasing(func, args, kwargs, tree_map(wrapped, out))


class Dispatch(TorchDispatchMode):
    """Tensors that are made on the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


class Function(TorchFunctionMode):
    """What torch does in Python, above its operators."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        if func is torch.Tensor.tolist and isinstance(args[0], OnDevice):
            return args[0].cpu().tolist()
        if func is torch.Tensor.numpy and isinstance(args[0], OnDevice):
            raise TypeError("numpy() of a tensor on pretend:0")
        return func(*args, **kwargs)


def submit_on_device(pool: ThreadPoolExecutor, work: Callable, /, *args, **kwargs) -> Future:
    """Threads make tensors on the device too; by themselves, modes hold for one thread."""

    def work_on_device() -> object:
        with Function(), Dispatch():
            return work(*args, **kwargs)

    return submit(pool, work_on_device)


submit, ThreadPoolExecutor.submit = ThreadPoolExecutor.submit, submit_on_device


def run_script(command: list[str]) -> dict:
    """What a script's `main` ends with: the error, if any, and the waits."""
    waits.clear()
    error = ""
    with process_state_kept(), without_figures():
        sys.argv = command
        specification = importlib.util.spec_from_file_location(Path(command[0]).stem, command[0])
        module = importlib.util.module_from_spec(specification)
        # backward passes in this thread, where the modes are on
        with Function(), Dispatch(), torch.autograd.set_multithreading_enabled(False):
            try:
                specification.loader.exec_module(module)
                module.main()
            except (Exception, SystemExit) as problem:
                error = f"{type(problem).__name__}: {problem}"
    return {"error": error, "waits": dict(waits)}


def main() -> None:
    results, words = Path(sys.argv[1]), sys.argv[2:]
    commands = [list(group) for is_end, group in itertools.groupby(words, "+".__eq__) if not is_end]
    results.write_text(json.dumps([run_script(command) for command in commands]))


if __name__ == "__main__":
    main()
