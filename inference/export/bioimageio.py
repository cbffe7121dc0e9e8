"""A model as a package of bioimage.io, which ilastik, deepImageJ, QuPath and napari open."""

import copy
import hashlib
import re
import warnings
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import torch
import yaml
from huggingface_hub import ModelCard
from PIL import Image, ImageOps
from torch import Tensor

from data_utils.image_io.volumes import VolumeHeader
from data_utils.loading.volume_input import VolumeInput
from inference.export.graph import ProbabilityNetwork, describe, prepares_images
from inference.export.onnx import OPSET, hint, traced_images, write_graph
from inference.export.proof import Answer, check_answers, expected_logits, images_of, import_package, proof_images
from inference.tiling.receptive_field import reach
from runtime.errors import ModelError, SettingsError
from runtime.files import replace_path
from tasks import task_of_model
from unet.blocks import fold_batch_norm
from unet.config import UNetConfig
from unet.model import UNet

INSTALL = "pip install onnx onnxruntime bioimageio.core==0.11.0 pydantic==2.13.5"
PYDANTIC = (2, 14)  # from this version on bioimageio.spec 0.5.12 cannot write down what it has read
# The first that has all that is written here, so that older programs read it too. bioimageio.spec 0.5.3 to 0.5.9 refuse
# what the builder of 0.5.12 writes, since the documentation is then a file with a checksum.
FORMAT_VERSION = "0.5.3"
TESTED = {2: (1, 96, 128), 3: (1, 16, 48, 64)}  # number of axes -> batch size and sides of the test tensors
COVER = (800, 400)  # pixels: bioimage.io shows covers of 2 : 1
PAPERS = {
    2: {"text": "Ronneberger et al., U-Net, MICCAI 2015", "doi": "10.1007/978-3-319-24574-4_28"},
    3: {"text": "Cicek et al., 3D U-Net, MICCAI 2016", "doi": "10.1007/978-3-319-46723-8_49"},
}
RANGES = {"uint8": [0, 255], "uint16": [0, 65535]}  # pixel type -> lowest and highest value
CHANNELS = {1: ["intensity"], 3: ["red", "green", "blue"]}  # number of channels -> their names
DOCUMENTATION = """# {title}

{text}

## In this package

- The input `image` takes {images}.
- The output `probabilities` is {answer}.
- Any size is taken. A program that cuts images into tiles should let them overlap by {overlap} on each side.
"""


class Owner(NamedTuple):
    """The names of a model's authors, and the SPDX identifier of its license."""

    authors: Sequence[str]
    license: str


def export_bioimageio(model: UNet, path: Path, owner: Owner, folder: Path) -> None:
    """Write a .zip with rdf.yaml, weights for onnxruntime and for torch, and a test image with our answer.

    `image` (B, C, *spatial) float32, values as they are in the files -> `probabilities` (B, num_classes, *spatial).
    Raises ModelError, and writes no file, if bioimageio.core does not answer as `Predictor` does.

    Args:
        folder: the folder of the model, which may lie in the folder of its run, or its Hub id.
    """
    if path.suffix != ".zip":
        raise SettingsError(f"{path}: the name must end in .zip")
    check_config(model.config)
    owner = read_owner(owner)
    for package in ("bioimageio.core", "onnx", "onnxruntime"):
        import_package(package, INSTALL)
    if tuple(map(int, version("pydantic").split(".")[:2])) >= PYDANTIC:
        raise ModelError(f"bioimageio.core 0.11 does not go with pydantic {version('pydantic')}: {INSTALL}")
    model = model.cpu().float().eval()
    with replace_path(path) as temporary:
        write_package(model, temporary, owner, folder)
        batches = proof_images(model.config)
        check_answers(
            "bioimageio.core",
            lambda: [open_package(temporary, weights) for weights in ("onnx", "torchscript")],
            batches,
            expected_probabilities(model, batches),
            hint(model.config),
        )


def check_config(config: UNetConfig) -> None:
    """Raises ModelError if a package cannot hold such models."""
    if prepares_images(config) and not task_of_model(config).at_image_size:
        line = "resizes images, and answers at that size; a package of bioimage.io answers at the images' own"
        raise ModelError(f"the model {line}")
    if config.preprocess.clip is not None and config.preprocess.standardize:
        line = "clips volumes and then standardizes them; bioimageio.core measures a volume before it is clipped"
        raise ModelError(f"the model {line}")


def read_owner(owner: Owner) -> Owner:
    """The owner with the license as SPDX writes it; SettingsError for what is missing, or what no package takes."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    for flag, value in (("author NAME", owner.authors), ("license ID", owner.license)):
        if not value:
            raise SettingsError(f"--to bioimageio needs --{flag}: a package says whose it is, and who may use it")
    for author in owner.authors:
        if "/" in author:
            raise SettingsError(f"--author {author}: a name cannot have a slash")
    try:
        return owner._replace(license=canonicalize_license_expression(owner.license))
    except InvalidLicenseExpression as error:
        line = f"--license {owner.license}: is none of spdx.org/licenses, such as CC-BY-4.0"
        raise SettingsError(line) from error


def expected_probabilities(model: UNet, batches: Sequence[np.ndarray]) -> list[Tensor]:
    """The probabilities that a package has to answer; it clips and standardizes volumes, which have its spacing."""
    if model.config.dims == 3:
        prepare = partial(prepare_volume, model.config)
        batches = [np.stack(list(map(prepare, batch))) for batch in batches]
    task = task_of_model(model.config)
    return [task.probabilities(logits) for logits in expected_logits(model, batches)]


def prepare_volume(config: UNetConfig, voxels: np.ndarray) -> np.ndarray:
    """(C, D, H, W) -> the network's input, for a volume that has the network's spacing already."""
    spacing = config.preprocess.spacing or (1.0, 1.0, 1.0)
    header = VolumeHeader(voxels.shape[1:], spacing, len(voxels), "float32", np.eye(4), ())
    return VolumeInput(voxels.transpose(1, 2, 3, 0), header, config.preprocess, len(voxels)).whole()


def write_package(model: UNet, path: Path, owner: Owner, folder: Path) -> None:
    """Write a package, without proof, of a model in evaluation mode, on the CPU and of float32."""
    config = model.config
    with TemporaryDirectory(prefix="export-") as name:
        content = Path(name)
        write_graph(ProbabilityNetwork(model), content / "weights.onnx", "probabilities", can_prepare=False)
        network = ProbabilityNetwork(fold_batch_norm(copy.deepcopy(model))).eval()
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")  # tracing warns, but its results are checked
            torch.jit.trace(network, traced_images(config), check_trace=False).save(str(content / "weights.pt"))
        images = images_of(config, TESTED[config.dims])
        (answer,) = expected_probabilities(model, [images])
        np.save(content / "image.npy", images.astype(np.float32))
        np.save(content / "probabilities.npy", answer.numpy())
        pictures = sorted((folder.absolute().parent / "predictions").rglob("*.png"))
        if pictures:
            cover = ImageOps.pad(Image.open(pictures[0]).convert("RGB"), COVER, color="white")
            cover.save(content / "cover.jpg", quality=90)
        title, text = title_and_text(config, folder)
        documentation = DOCUMENTATION.format(
            title=title,
            text=text,
            images=describe(config)["images"],
            answer=answer_text(config),
            overlap=overlap_text(config),
        )
        (content / "README.md").write_text(documentation, encoding="utf-8")
        rdf = yaml.safe_dump(rdf_content(config, title, owner, content), sort_keys=False)
        (content / "rdf.yaml").write_text(rdf, encoding="utf-8")
        with ZipFile(path, "w", ZIP_DEFLATED) as archive:
            for file in sorted(content.iterdir()):
                archive.write(file, file.name)


def title_and_text(config: UNetConfig, folder: Path) -> tuple[str, str]:
    """The title of a model and what its card says of it; or its classes, where it has no card."""
    if not (folder / "README.md").is_file():
        return "U-Net", f"A U-Net that gives {answer_text(config)}."
    text = ModelCard.load(folder / "README.md").text.strip()
    first, _, body = text.partition("\n")
    return first.removeprefix("# "), body.strip()


def rdf_content(config: UNetConfig, title: str, owner: Owner, folder: Path) -> dict[str, Any]:
    """The content of rdf.yaml, of a folder that holds all other files."""
    name = re.sub(r"[^A-Za-z0-9_+\-() ]", "_", title)[:128]
    if len(name) < 5:
        name = f"U-Net {name}"
    things = {2: "images", 3: "volumes"}[config.dims]
    torch_version = torch.__version__.partition("+")[0]
    decoding = describe(config)["decoding"]
    return {
        "format_version": FORMAT_VERSION,
        "type": "model",
        "name": name,
        "description": f"A U-Net for {things}: {answer_text(config)}"[:512],
        "authors": [{"name": author} for author in owner.authors],
        "license": owner.license,
        "cite": [PAPERS[config.dims]],
        "tags": ["unet", f"unet{config.dims}d", "pytorch", "segmentation"],
        "documentation": "README.md",
        "covers": [file.name for file in folder.glob("cover.jpg")],
        "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "inputs": [input_entry(config, folder)],
        "outputs": [output_entry(config, folder)],
        "weights": {
            "torchscript": {**file_entry(folder / "weights.pt"), "pytorch_version": torch_version},
            "onnx": {**file_entry(folder / "weights.onnx"), "opset_version": OPSET, "parent": "torchscript"},
        },
        "config": {"unet_accelerate": {"config": config.to_json(), "decoding": decoding}},
    }


def input_entry(config: UNetConfig, folder: Path) -> dict[str, Any]:
    """The images in rdf.yaml, with what the program does to volumes; the network does all itself that images need."""
    preprocess = config.preprocess
    values: dict[str, Any] = {"type": "float32"}
    steps = []
    if config.dims == 2:
        pixel_type = (*preprocess.pixel_types, "uint8")[0]
        if pixel_type in RANGES:
            values["range"] = RANGES[pixel_type]
    elif preprocess.clip is not None:
        lowest, highest = preprocess.clip
        steps.append({"id": "clip", "kwargs": {"min": lowest, "max": highest}})
    elif preprocess.standardize:
        steps.append({"id": "zero_mean_unit_variance", "kwargs": {"axes": ["z", "y", "x"]}})
    channels = CHANNELS.get(config.in_channels, [f"channel_{index}" for index in range(config.in_channels)])
    sizes = {name: {"min": 1, "step": 1} for name in "zyx"}
    return {
        "id": "image",
        "axes": axes(config, channels, sizes),
        "data": values,
        "test_tensor": file_entry(folder / "image.npy"),
        "preprocessing": steps,
    }


def output_entry(config: UNetConfig, folder: Path) -> dict[str, Any]:
    """The probabilities in rdf.yaml."""
    sizes = {name: {"tensor_id": "image", "axis_id": name} for name in "zyx"}
    return {
        "id": "probabilities",
        "axes": axes(config, answer_names(config), sizes),
        "data": {"type": "float32", "range": [0, 1]},
        "test_tensor": file_entry(folder / "probabilities.npy"),
    }


def axes(config: UNetConfig, channels: Sequence[str], sizes: dict[str, dict]) -> list[dict[str, Any]]:
    """The axes of a tensor; those of volumes have the size of a voxel.

    Args:
        sizes: of each axis of space, by its name.
    """
    result: list[dict[str, Any]] = [{"type": "batch"}, {"type": "channel", "channel_names": list(channels)}]
    for index, name in enumerate("zyx"[-config.dims :]):
        axis: dict[str, Any] = {"type": "space", "id": name, "size": sizes[name]}
        if config.dims == 3 and config.preprocess.spacing is not None:
            axis |= {"scale": config.preprocess.spacing[index], "unit": "millimeter"}
        result.append(axis)
    return result


def file_entry(file: Path) -> dict[str, str]:
    """A file of the package, as rdf.yaml names it."""
    return {"source": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


def answer_names(config: UNetConfig) -> list[str]:
    """A name for each channel of the answer, of letters and digits alone."""
    return [re.sub(r"\W", "_", name) for name in task_of_model(config).output_names]


def answer_text(config: UNetConfig) -> str:
    """A sentence on the output."""
    return f"the probability of {', '.join(answer_names(config))}"


def overlap_text(config: UNetConfig) -> str:
    """How far a pixel's answer depends on its surroundings, in words."""
    reaches = reach(config)
    if reaches is None:
        return "half a tile"
    factor = 1.0
    if config.dims == 2 and config.preprocess.image_size is None:
        factor = config.preprocess.scale
    lengths = [str(round(side / factor)) for side in dict.fromkeys(reaches)]
    return f"{' x '.join(lengths)} pixels"


def open_package(path: Path, weights: str) -> Answer:
    """A function that answers by bioimageio.core. Raises RuntimeError if its own test of these weights fails."""
    from bioimageio.core import Sample, create_prediction_pipeline, load_model_description, test_model
    from bioimageio.core.digest_spec import get_member_ids
    from bioimageio.core.tensor import Tensor as Member

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = load_model_description(path)
        summary = test_model(model, weight_format=weights, devices=["cpu"])
        pipeline = create_prediction_pipeline(model, weight_format=weights, devices=["cpu"])
    if summary.status != "passed":
        errors = chain.from_iterable(detail.errors for detail in summary.details)
        reason = next((error.msg for error in errors), "without a reason")
        raise RuntimeError(f"its test did not pass: {reason}")
    (source,) = get_member_ids(model.inputs)
    (answer_id,) = get_member_ids(model.outputs)
    dims = [axis.id for axis in model.inputs[0].axes]

    def answer(images: np.ndarray) -> np.ndarray:
        members = {source: Member.from_numpy(images.astype(np.float32), dims=dims)}
        sample = Sample(members=members, stat={}, id="images")
        return pipeline.predict_sample_without_blocking(sample).members[answer_id].data.to_numpy()

    return answer
