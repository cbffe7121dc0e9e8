"""Images per second and score of a model in our Predictor, onnxruntime, OpenVINO and torch.export, on a CPU in one run.

OMP_NUM_THREADS=1 python benchmarks/export.py MODEL IMAGES MASKS

Each is given the same images as arrays and gives masks; they run in turn, image by image. Time to read files and to
open a model is left out. A format that refuses the model is named with its reason.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data_utils.image_io.formats import PageFile
from inference import Predictor
from inference.export.export_format import Options, export_proved
from inference.export.export_formats import EXPORT_FORMATS
from inference.models import load_model
from inference.outputs import new_format
from inference.outputs.prediction_format import MaskFormat
from inference.scoring.truth import open_mask_rows
from runtime.errors import ModelError
from tasks.confusion import confusion_matrix, matrix_scores

Segment = Callable[[np.ndarray], np.ndarray]  # (H, W, 3) uint8 -> (H, W) class indices
REPEATS = 3  # of which the fastest counts: other programs only take time away
OURS = "Predictor"


def by_predictor(model: Path) -> Segment:
    return Predictor.from_pretrained(model).mask


def by_onnxruntime(file: Path) -> Segment:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def segment(image: np.ndarray) -> np.ndarray:
        images = image.transpose(2, 0, 1)[None].astype(np.float32)
        return session.run(["logits"], {"images": images})[0][0].argmax(0)

    return segment


def by_openvino(folder: Path) -> Segment:
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    network = openvino.compile_model(folder / "model.xml", "CPU", settings)

    def segment(image: np.ndarray) -> np.ndarray:
        return network({"images": np.ascontiguousarray(image.transpose(2, 0, 1)[None])})["mask"][0].copy()

    return segment


def by_torch_export(file: Path) -> Segment:
    program = torch.export.load(file).module()

    @torch.inference_mode()
    def segment(image: np.ndarray) -> np.ndarray:
        return program(torch.from_numpy(image).permute(2, 0, 1)[None].float())[0].argmax(0).numpy()

    return segment


RUNTIMES = {  # name -> format, what opens it, options of its export
    "onnxruntime": ("onnx", by_onnxruntime, Options()),
    "OpenVINO": ("openvino", by_openvino, Options(mask=True)),
    "torch.export": ("torch", by_torch_export, Options()),
}


def exported(model: Path, folder: Path) -> Iterator[tuple[str, Segment]]:
    """The model in each runtime; one that refuses it is named."""
    for name, (to, opened, options) in RUNTIMES.items():
        file = folder / f"{to}{EXPORT_FORMATS[to].suffix}"
        try:
            export_proved(EXPORT_FORMATS[to], load_model(model), file, options)
        except ModelError as error:
            print(f"{name}: {error}")
            continue
        yield name, opened(file)


def true_mask(file: Path, output_format: MaskFormat) -> torch.Tensor:
    """(H, W) class indices of a mask file."""
    with open_mask_rows(PageFile(file), output_format.reader) as rows:
        return torch.from_numpy(rows.read(0, rows.size[0]).mask).long()


def seconds_in_turn(ways: dict[str, Segment], images: list[np.ndarray]) -> dict[str, float]:
    """Seconds that each takes for all images: for each image its fastest of REPEATS."""
    seconds = dict.fromkeys(ways, 0.0)
    for image in images:
        fastest = dict.fromkeys(ways, float("inf"))
        for _ in range(REPEATS):
            for name, segment in ways.items():
                start = time.perf_counter()
                segment(image)
                fastest[name] = min(fastest[name], time.perf_counter() - start)
        for name in ways:
            seconds[name] += fastest[name]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a model folder of classes in images of 8 bits")
    parser.add_argument("images", type=Path)
    parser.add_argument("masks", type=Path)
    parser.add_argument("--count", type=int, default=20, help="how many of the images, spread over the folder")
    args = parser.parse_args()
    output_format = new_format(load_model(args.model).config)
    assert isinstance(output_format, MaskFormat)
    files = sorted(args.images.iterdir())
    files = [files[index] for index in np.linspace(0, len(files) - 1, min(args.count, len(files))).astype(int)]
    images = [np.array(Image.open(file).convert("RGB")) for file in files]
    truths = [true_mask(args.masks / f"{file.stem}.png", output_format) for file in files]
    with TemporaryDirectory() as folder:
        ways = {OURS: by_predictor(args.model), **dict(exported(args.model, Path(folder)))}
        masks = {name: [segment(image) for image in images] for name, segment in ways.items()}  # it also warms up
        seconds = seconds_in_turn(ways, images)
    for name in ways:
        matrix = sum(
            confusion_matrix(torch.from_numpy(mask).long(), truth, len(output_format.names))
            for mask, truth in zip(masks[name], truths, strict=True)
        )
        equal = np.mean([(mask == ours).mean() for mask, ours in zip(masks[name], masks[OURS], strict=True)])
        score = matrix_scores(matrix)["mean_iou"]
        speed = len(images) / seconds[name]
        print(f"{name}: {speed:.2f} images/s, mean IoU {score:.4f}, {equal:.4%} of the pixels as ours")


if __name__ == "__main__":
    main()
