"""A model as a package of bioimage.io, which ilastik, deepImageJ, QuPath and napari open."""

import copy
import hashlib
import re
import warnings
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import torch
import yaml
from huggingface_hub import ModelCard
from PIL import Image, ImageOps
from torch import Tensor

from data_utils.image_io.volumes import VolumeHeader
from data_utils.loading.volume_input import VolumeInput
from inference.export.export_format import ExportFormat, Options, import_package
from inference.export.graph import ProbabilityNetwork, prepares_images
from inference.export.onnx import OPSET, traced_images, write_graph
from inference.export.proof import Answer, expected_logits, images_of
from inference.tiling.receptive_field import reach
from runtime.errors import SettingsError
from tasks import new_decoder, new_format, task_of_model
from tasks.drawing import join_in_row, palette, to_rgb
from unet.blocks import fold_batch_norm
from unet.config import UNetConfig
from unet.model import UNet

INSTALL = "pip install onnx onnxruntime bioimageio.core==0.11.0 pydantic==2.13.5"
PYDANTIC = (2, 14)  # from this version on bioimageio.spec 0.5.12 cannot write down what it has read
FORMAT_VERSION = "0.5.3"  # the first that has all that is written here: older programs read it too
TESTED = {2: (1, 96, 128), 3: (1, 16, 48, 64)}  # number of axes -> batch size and sides of the test tensors
COVER = (800, 400)  # pixels: bioimage.io shows covers of 2 : 1
PAPERS = {
    2: {"text": "Ronneberger et al., U-Net, MICCAI 2015", "doi": "10.1007/978-3-319-24574-4_28"},
    3: {"text": "Cicek et al., 3D U-Net, MICCAI 2016", "doi": "10.1007/978-3-319-46723-8_49"},
}
RANGES = {"uint8": [0, 255], "uint16": [0, 65535]}  # pixel type -> lowest and highest value
DOCUMENTATION = """# {title}

{text}

## In this package

- The input `image` takes {images}.
- The output `probabilities` is {answer}.
- Any size is taken. A program that cuts images into tiles should let them overlap by {overlap} on each side.
"""


class BioImageIo(ExportFormat):
    """A .zip with rdf.yaml, weights for onnxruntime and for torch, a test image with our answer, and a picture.

    `image` (B, C, *spatial) float32, values as they are in the files -> `probabilities` (B, num_classes, *spatial).
    """

    runtime = "bioimageio.core"
    suffix = ".zip"
    flags = ("license", "author")
    proof = "its probabilities agree with those of predict.py to 0.0001, and its own test passed"

    def problem(self, config: UNetConfig) -> str | None:
        if prepares_images(config) and not new_decoder(task_of_model(config)).at_image_size:
            return "resizes images, and answers at that size; a package of bioimage.io answers at the images' own"
        if config.preprocess.clip is not None and config.preprocess.standardize:
            return "clips volumes and then standardizes them; bioimageio.core measures a volume before it is clipped"
        return None

    def hint(self, config: UNetConfig) -> str:
        installed = version("pydantic")
        if tuple(map(int, installed.split(".")[:2])) >= PYDANTIC:
            return f"bioimageio.core 0.11 does not go with pydantic {installed}: {INSTALL}"
        if config.encoder is not None:
            return "encoders with window attention (Swin) cannot be exported"
        return ""

    def expected_answers(self, model: UNet, batches: Sequence[np.ndarray]) -> list[Tensor]:
        """Probabilities; volumes are clipped and standardized by the package."""
        config = model.config
        if config.dims == 3:
            prepare = partial(prepare_volume, config)
            batches = [np.stack(list(map(prepare, batch))) for batch in batches]
        decoder = new_decoder(task_of_model(config))
        return [decoder.probabilities(logits, dim=1) for logits in expected_logits(model, batches)]

    def write(self, model: UNet, path: Path, options: Options) -> None:
        license_id = read_license(options)
        import_package("bioimageio.core", INSTALL)
        import_package("onnx", INSTALL)
        import_package("onnxruntime", INSTALL)
        config = model.config
        title, text = title_and_text(config, options.folder)
        with TemporaryDirectory(prefix="export-") as name:
            folder = Path(name)
            write_graph(ProbabilityNetwork(model), folder / "weights.onnx", "probabilities", can_prepare=False)
            write_torchscript(model, folder / "weights.pt")
            images = images_of(config, TESTED[config.dims])
            (answer,) = self.expected_answers(model, [images])
            np.save(folder / "test_image.npy", images.astype(np.float32))
            np.save(folder / "test_probabilities.npy", answer.numpy())
            draw_cover(images[0], answer[0], options.folder).save(folder / "cover.jpg", quality=90)
            description = self.description(config)
            documentation = DOCUMENTATION.format(
                title=title,
                text=text,
                images=description["images"],
                answer=answer_text(config),
                overlap=overlap_text(config),
            )
            (folder / "README.md").write_text(documentation, encoding="utf-8")
            content = rdf_content(config, title, options.author or (), license_id, folder)
            (folder / "rdf.yaml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
            with ZipFile(path, "w", ZIP_DEFLATED) as archive:
                for file in sorted(folder.iterdir()):
                    archive.write(file, file.name)

    def open(self, path: Path) -> list[Answer]:
        return [open_package(path, "onnx"), open_package(path, "torchscript")]


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
        raise RuntimeError(f"its test did not pass: {first_error(summary)}")
    (source,) = get_member_ids(model.inputs)
    (answer_id,) = get_member_ids(model.outputs)
    axes = [axis.id for axis in model.inputs[0].axes]

    def answer(images: np.ndarray) -> np.ndarray:
        members = {source: Member.from_numpy(images.astype(np.float32), dims=axes)}
        sample = Sample(members=members, stat={}, id="images")
        return pipeline.predict_sample_without_blocking(sample).members[answer_id].data.to_numpy()

    return answer


def first_error(summary: Any) -> str:
    """The first thing that bioimageio.core's test finds wrong."""
    for detail in summary.details:
        for error in detail.errors:
            return f"{detail.name}: {error.msg}"
    return "it says not why"


def read_license(options: Options) -> str:
    """The license as SPDX writes it; SettingsError where it or the authors are missing, or no package takes them."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    for name, value in (("author NAME", options.author), ("license ID", options.license)):
        if not value:
            raise SettingsError(f"--to bioimageio needs --{name}: a package says whose it is, and who may use it")
    for author in options.author or ():
        if "/" in author:
            raise SettingsError(f"--author {author}: a name cannot have a slash")
    try:
        return canonicalize_license_expression(options.license or "")
    except InvalidLicenseExpression as error:
        line = f"--license {options.license}: is none of spdx.org/licenses, such as CC-BY-4.0"
        raise SettingsError(line) from error


def rdf_content(
    config: UNetConfig, title: str, authors: Sequence[str], license_id: str, folder: Path
) -> dict[str, Any]:
    """The content of rdf.yaml, of a folder that holds all other files."""
    decoder = new_decoder(task_of_model(config))
    name = re.sub(r"[^A-Za-z0-9_+\-() ]", "_", title)[:128]
    if len(name) < 5:
        name = f"U-Net {name}"
    things = {2: "images", 3: "volumes"}[config.dims]
    kind = {2: "unet2d", 3: "unet3d"}[config.dims]
    return {
        "format_version": FORMAT_VERSION,
        "type": "model",
        "name": name,
        "description": f"A U-Net for {things}: {answer_text(config)}"[:512],
        "authors": [{"name": author} for author in authors],
        "license": license_id,
        "cite": [PAPERS[config.dims]],
        "tags": ["unet", kind, "pytorch", "segmentation"],
        "documentation": "README.md",
        "covers": ["cover.jpg"],
        "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "inputs": [input_entry(config, folder)],
        "outputs": [output_entry(config, folder)],
        "weights": weights_entry(folder),
        "config": {"unet_accelerate": {"config": config.to_json(), "decoding": decoder.reading}},
    }


def weights_entry(folder: Path) -> dict[str, Any]:
    """The weights in rdf.yaml, in two formats: programs open one or the other."""
    version = torch.__version__.partition("+")[0]
    onnx = {**file_entry(folder / "weights.onnx"), "opset_version": OPSET, "parent": "torchscript"}
    return {"torchscript": {**file_entry(folder / "weights.pt"), "pytorch_version": version}, "onnx": onnx}


def input_entry(config: UNetConfig, folder: Path) -> dict[str, Any]:
    """The images in rdf.yaml."""
    axes: list[dict[str, Any]] = [{"type": "batch"}]
    channels = [f"channel_{index}" for index in range(config.in_channels)]
    channels = {1: ["intensity"], 3: ["red", "green", "blue"]}.get(config.in_channels, channels)
    axes.append({"type": "channel", "channel_names": channels})
    for name, scale in spatial_axes(config).items():
        axes.append({"type": "space", "id": name, "size": {"min": 1, "step": 1}, **scale})
    pixel_types = config.preprocess.pixel_types or ("uint8",)
    values: dict[str, Any] = {"type": "float32"}
    if config.dims == 2 and pixel_types[0] in RANGES:
        values["range"] = RANGES[pixel_types[0]]
    return {
        "id": "image",
        "axes": axes,
        "data": values,
        "test_tensor": file_entry(folder / "test_image.npy"),
        "preprocessing": preprocessing_steps(config),
    }


def output_entry(config: UNetConfig, folder: Path) -> dict[str, Any]:
    """The probabilities in rdf.yaml."""
    axes: list[dict[str, Any]] = [{"type": "batch"}, {"type": "channel", "channel_names": answer_names(config)}]
    for name, scale in spatial_axes(config).items():
        axes.append({"type": "space", "id": name, "size": {"tensor_id": "image", "axis_id": name}, **scale})
    return {
        "id": "probabilities",
        "axes": axes,
        "data": {"type": "float32", "range": [0, 1]},
        "test_tensor": file_entry(folder / "test_probabilities.npy"),
    }


def spatial_axes(config: UNetConfig) -> dict[str, dict[str, Any]]:
    """The axes of an image, or of a volume with the size of a voxel."""
    if config.dims == 2:
        return {"y": {}, "x": {}}
    if config.preprocess.spacing is None:
        return {"z": {}, "y": {}, "x": {}}
    axes = {}
    for name, millimeters in zip("zyx", config.preprocess.spacing, strict=True):
        axes[name] = {"scale": millimeters, "unit": "millimeter"}
    return axes


def preprocessing_steps(config: UNetConfig) -> list[dict[str, Any]]:
    """The preprocessing of volumes before the network sees them; for images the network does all itself."""
    if config.dims == 2:
        return []
    steps = []
    if config.preprocess.clip is not None:
        lowest, highest = config.preprocess.clip
        steps.append({"id": "clip", "kwargs": {"min": lowest, "max": highest}})
    if config.preprocess.standardize:
        steps.append({"id": "zero_mean_unit_variance", "kwargs": {"axes": ["z", "y", "x"]}})
    return steps


def prepare_volume(config: UNetConfig, voxels: np.ndarray) -> np.ndarray:
    """(C, D, H, W) -> the network's input, for a volume that has the network's spacing already."""
    size = voxels.shape[1:]
    spacing = config.preprocess.spacing or (1.0, 1.0, 1.0)
    header = VolumeHeader(size, spacing, len(voxels), "float32", np.eye(4), ())
    return VolumeInput(voxels.transpose(1, 2, 3, 0), header, config.preprocess, len(voxels)).whole()


def answer_names(config: UNetConfig) -> list[str]:
    """A name for each channel of the answer, of letters and digits alone."""
    return [re.sub(r"\W", "_", name) for name in new_format(config).channel_names]


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


def file_entry(file: Path) -> dict[str, str]:
    """A file of the package, as rdf.yaml names it."""
    return {"source": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


def write_torchscript(model: UNet, path: Path) -> None:
    """Write the network as a program of torch.jit."""
    network = ProbabilityNetwork(fold_batch_norm(copy.deepcopy(model))).eval()
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # tracing warns, but its results are checked
        torch.jit.trace(network, traced_images(model.config), check_trace=False).save(str(path))


def title_and_text(config: UNetConfig, folder: Path | None) -> tuple[str, str]:
    """The title of a model and what its card says of it; or its classes, where it has no card."""
    if folder is None or not (folder / "README.md").is_file():
        return "U-Net", f"A U-Net that gives {answer_text(config)}."
    text = ModelCard.load(folder / "README.md").text.strip()
    first, _, body = text.partition("\n")
    return first.removeprefix("# "), body.strip()


def draw_cover(image: np.ndarray, answer: Tensor, folder: Path | None) -> Image.Image:
    """The first picture of the run around the model's folder; without one a test image beside its answer.

    Args:
        image: (C, H, W) or (C, D, H, W), of which the middle slice is shown.
        answer: (num_classes, *spatial).
    """
    pictures: list[Path] = []
    if folder is not None:
        pictures = sorted((folder.absolute().parent / "predictions").rglob("*.png"))
    if pictures:
        picture = Image.open(pictures[0]).convert("RGB")
    else:
        largest = answer.argmax(dim=0).numpy()
        if image.ndim == 4:
            image = image[:, image.shape[1] // 2]
            largest = largest[len(largest) // 2]
        colors = palette(len(answer))
        picture = Image.fromarray(join_in_row([to_rgb(image.transpose(1, 2, 0)), colors[largest]]))
    return ImageOps.pad(picture, COVER, Image.Resampling.BICUBIC, color="white")
