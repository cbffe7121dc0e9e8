"""Opens an exported model by its own runtime alone, and writes down its answers; `proof` runs it.

python opener.py onnx model.onnx images.npz answers.npz

Nothing of this project is imported here: a model that needs something of it fails.
"""

import os
import socket
import sys
from collections.abc import Callable
from functools import partial

import numpy as np

# (B, C, *spatial) pixel values -> (B, num_classes, *spatial) logits or probabilities
Answer = Callable[[np.ndarray], np.ndarray]


def open_onnx(path: str) -> Answer:
    """A function that answers by onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, and need not be printed
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def answer(images: np.ndarray) -> np.ndarray:
        (logits,) = session.run(["logits"], {"images": images.astype(np.float32)})
        return logits

    return answer


def open_package(path: str, weights: str) -> Answer:
    """A function that answers by bioimageio.core, after its own test of these weights."""
    import warnings

    warnings.simplefilter("ignore")
    from bioimageio.core import Sample, create_prediction_pipeline, load_model_description, test_model
    from bioimageio.core.digest_spec import get_member_ids
    from bioimageio.core.tensor import Tensor

    model = load_model_description(path)
    summary = test_model(model, weight_format=weights, devices=["cpu"])
    if summary.status != "passed":
        raise RuntimeError(f"its test did not pass: {first_error(summary)}")
    (source,) = get_member_ids(model.inputs)
    (answer_id,) = get_member_ids(model.outputs)
    pipeline = create_prediction_pipeline(model, weight_format=weights, devices=["cpu"])
    axes = [axis.id for axis in model.inputs[0].axes]

    def answer(images: np.ndarray) -> np.ndarray:
        members = {source: Tensor.from_numpy(images.astype(np.float32), dims=axes)}
        sample = Sample(members=members, stat={}, id="images")
        return pipeline.predict_sample_without_blocking(sample).members[answer_id].data.to_numpy()

    return answer


def first_error(summary) -> str:
    """The first thing that bioimageio.core's test finds wrong."""
    for detail in summary.details:
        for error in detail.errors:
            return f"{detail.name}: {error.msg}"
    return "it says not why"


OPENERS: dict[str, Callable[[str], Answer]] = {
    "onnx": open_onnx,
    "bioimageio-onnx": partial(open_package, weights="onnx"),
    "bioimageio-torchscript": partial(open_package, weights="torchscript"),
}


def main(name: str, model: str, images: str, answers: str) -> None:
    """Answer each batch of `images`; at an error write the answers before it, and end with its text.

    A model that cannot be opened has no file of answers.
    """
    arrays = []
    problem = None
    turn_network_off()
    try:
        answer = OPENERS[name](model)
    except Exception as error:  # a runtime may raise anything
        sys.exit(text_of(error))
    try:
        with np.load(images) as batches:
            for key in batches.files:
                arrays.append(answer(batches[key]))
    except Exception as error:
        problem = text_of(error)
    np.savez(answers, *arrays)
    sys.exit(problem)


def turn_network_off() -> None:
    """Make every connection of this process fail: the model's files alone have to be enough."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("a model that is checked must not need the network")

    for owner, name in ((socket, "getaddrinfo"), (socket.socket, "connect"), (socket.socket, "connect_ex")):
        setattr(owner, name, refuse)


def text_of(error: Exception) -> str:
    """The message of an error, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    own_folder = os.path.dirname(os.path.abspath(__file__))
    sys.path = [entry for entry in sys.path if entry != own_folder]  # its modules are named like the runtimes
    main(*sys.argv[1:])
