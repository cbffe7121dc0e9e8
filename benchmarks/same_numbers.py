"""Whether two checkouts compute the same numbers: losses and scores, weights, masks and probabilities, bit for bit.

python benchmarks/same_numbers.py record numbers.json                  writes the numbers of this checkout
python benchmarks/same_numbers.py compare numbers.json                 this checkout against the recorded numbers
python benchmarks/same_numbers.py compare ../other-checkout            this checkout against another one

Each case is a few tiny runs of train.py, predict.py, review.py, compare.py and the ONNX export, on the generated data
sets of benchmarks/tiny_sets.py. All numbers of metrics.jsonl count but speeds; files count by their decoded content. A
comparison prints what differs and ends with exit code 1 if anything does. Numbers are of one processor and one version
of torch: record and compare on one machine.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import tiny_sets
from benchmarks.recorded import Numbers, record_or_compare

IMAGES = "train.py --dataset {data}/images --tracker none --log-every 1 --seed 3"
TINY = "--plan none --base-channels 4 --num-workers 0 --batch-size 4"
VOLUMES = "train.py --dataset {data}/volumes --tracker none --log-every 1 --base-channels 4 --num-workers 0"
LEARN = "--max-steps 24 --learning-rate 0.01 --eval-every 12 --checkpoint-every 12"  # enough for masks of some shape
SMALL = f"--tracker none --log-every 1 --seed 3 {TINY} --depth 2 {LEARN} --output-dir {{out}}"
PREDICT = "predict.py --output {out}/masks --overwrite"
EVERYTHING = "--probabilities --overlay --uncertainty"
NAMES = "--classes 0=ground,100=bright,200=dark"
PRINTED = ("review.py", "compare.py")  # whose terminal output counts as well
PLACE_TAGS = ("ModelPixelScaleTag", "ModelTiepointTag", "GeoKeyDirectoryTag", "GDAL_NODATA")


@dataclass(frozen=True)
class Case:
    """Commands that run one after another in a folder of their own.

    Args:
        commands: words separated by spaces; {data} is the folder of the generated data, {out} that of the case. The
            first word is a script or `export`.
        processes: how many processes train.py and predict.py run on.
        after: a case whose folder must be complete before this one starts, {after} in the commands.
    """

    name: str
    commands: tuple[str, ...]
    processes: int = 1
    after: str | None = None

    def folder(self, cases: Path) -> Path:
        """Where its files are, below the folder of all cases."""
        return cases / "-".join(self.name.replace(",", "").split())


CASES = (
    Case("images", (f"{IMAGES} --output-dir {{out}} {TINY} --depth 3 --ema-decay 0.9 --max-steps 7 --eval-every 3",)),
    Case(
        "planned settings",
        (f"{IMAGES} --output-dir {{out}} --base-channels 4 --max-steps 6 --num-workers 2 --batch-size 3",),
    ),
    Case(
        "strong augmentation and crops",
        (
            f"{IMAGES} --output-dir {{out}} {TINY} --depth 2 --norm instance --augment strong --crop-size 24 32"
            " --class-weights auto --scale 0.75 --max-steps 6 --optimizer sgd --loss ce+dice --dropout 0.1",
        ),
    ),
    Case(
        "residual blocks, bilinear, no deep supervision",
        (
            f"{IMAGES} --output-dir {{out}} {TINY} --depth 3 --block residual --upsample bilinear --loss focal+dice"
            " --no-deep-supervision --image-size 32 48 --activation-checkpointing --micro-batch-size 2 --max-steps 5",
        ),
    ),
    Case(
        "resume",
        tuple(
            f"{IMAGES} --output-dir {{out}} {TINY} --depth 2 --norm group --max-steps {steps}"
            " --checkpoint-every 2 --ema-decay 0.9 --resume auto"
            for steps in (4, 7)
        ),
    ),
    Case(
        "two processes, group norm",
        (f"{IMAGES} --output-dir {{out}} {TINY} --depth 2 --norm group --max-steps 5 --batch-size 5",),
        processes=2,
    ),
    Case(
        "two processes, batch norm",
        (f"{IMAGES} --output-dir {{out}} {TINY} --depth 3 --max-steps 4 --batch-size 4",),
        processes=2,
    ),
    Case(
        "encoder",
        (
            f"{IMAGES} --output-dir {{out}} --plan none --batch-size 4 --num-workers 0 --base-channels 4"
            " --encoder {data}/encoder --max-steps 4",
            f"{PREDICT} --model {{out}}/model --input {{data}}/images/val/images",
        ),
    ),
    Case(
        "frozen encoder, fine-tuning",
        (
            f"{IMAGES} --output-dir {{out}} --plan none --batch-size 4 --num-workers 0 --base-channels 4"
            " --encoder {data}/encoder --freeze-encoder --max-steps 3",
        ),
    ),
    Case(
        "annotations",
        (
            "train.py --dataset {data}/coco --tracker none --log-every 1 --val-fraction 0.25 --output-dir {out}"
            f" {TINY} --depth 2 --max-steps 4",
        ),
    ),
    Case(
        "stream",
        (
            "train.py --dataset {data}/tars --streaming --tracker none --log-every 1 --output-dir {out}"
            f" {NAMES} --crop-size 32 32"
            f" {TINY} --depth 2 --max-steps 4",
        ),
    ),
    Case(
        "stream of parquet files",
        (f"train.py --dataset {{data}}/parquet --streaming {NAMES} --crop-size 32 32 {SMALL}",),
    ),
    Case(
        "objects",
        (
            f"train.py --dataset {{data}}/objects --task objects --crop-size 48 48 {SMALL}",
            f"{PREDICT} --model {{out}}/model --input {{data}}/objects/images --truth {{data}}/objects/masks"
            f" {EVERYTHING} --coco --min-size 1",
        ),
    ),
    Case(
        "landmarks",
        (
            f"train.py --dataset {{data}}/points --augment basic {SMALL}",
            f"{PREDICT} --model {{out}}/model --input {{data}}/points/images --truth {{data}}/points"
            " --probabilities --overlay",
        ),
    ),
    Case(
        "landmarks in volumes",
        (
            "train.py --dataset {data}/point_volumes --tracker none --log-every 1 --base-channels 4 --num-workers 0"
            f" --val-fraction 0.3 {LEARN} --output-dir {{out}}",
            f"{PREDICT} --model {{out}}/model --input {{data}}/point_volumes/images --truth {{data}}/point_volumes",
        ),
    ),
    Case(
        "classes that overlap",
        (
            f"train.py --dataset {{data}}/overlapping {SMALL}",
            f"{PREDICT} --model {{out}}/model --input {{data}}/overlapping/images --truth {{data}}/overlapping/masks"
            f" {EVERYTHING}",
        ),
    ),
    Case(
        "regions",
        (
            f"train.py --dataset {{data}}/images --regions whole=100+200;core=200 {SMALL}",
            f"{PREDICT} --model {{out}}/model --input {{data}}/photos --truth {{data}}/truth {EVERYTHING}",
        ),
    ),
    Case(
        "partly labeled",
        (f"train.py --dataset {{data}}/partly_labeled {NAMES} --val-fraction 0.2 --class-weights auto {SMALL}",),
    ),
    Case(
        "rasters with a place",
        (
            f"train.py --dataset {{data}}/rasters --val-blocks 64 --bands 4 2 1 --crop-size 32 32 {SMALL}",
            f"{PREDICT} --model {{out}}/model --input {{data}}/rasters/images --truth {{data}}/rasters/masks"
            f" {EVERYTHING} --polygons",
            f"train.py --dataset {{data}}/fields --label-column crop {SMALL}/fields",
        ),
    ),
    Case(
        "folds and their ensemble",
        (
            f"train.py --dataset {{data}}/images/train --fold 1/2 {SMALL}/1",
            f"train.py --dataset {{data}}/images/train --fold 2/2 {SMALL}/2",
            f"{PREDICT} --model {{out}}/1/model --ensemble {{out}}/2/model --input {{data}}/photos"
            f" --truth {{data}}/truth {EVERYTHING}",
        ),
    ),
    Case(
        "volumes",
        (
            f"{VOLUMES} --output-dir {{out}} --max-steps 4 --val-fraction 0.3",
            f"{PREDICT} --model {{out}}/model --input {{data}}/volumes/imagesTr --truth {{data}}/volumes/labelsTr"
            " --boundary --probabilities --overlay --tta",
            f"{PREDICT} --model {{out}}/model --input {{data}}/volumes/imagesTr --output {{out}}/tiles --tile-size 16",
        ),
    ),
    Case(
        "slices of volumes",
        (
            f"{VOLUMES} --output-dir {{out}} --dims 2 --plan none --depth 2 --batch-size 4 --max-steps 4",
            f"{PREDICT} --model {{out}}/model --input {{data}}/volumes/imagesTr",
        ),
    ),
    Case(
        "prediction",
        (
            f"{PREDICT} --model {{after}}/model --input {{data}}/photos --overlay --probabilities --tta"
            " --truth {data}/truth --boundary",
            f"{PREDICT} --model {{after}}/model --ensemble {{after}}/model --input {{data}}/photos"
            " --output {out}/two",
            f"{PREDICT} --model {{after}}/model --input {{data}}/photos {{data}}/tall.tif --output {{out}}/tiles"
            " --tile-size 64 --probabilities",
        ),
        after="images",
    ),
    Case(
        "prediction on two processes",
        (f"{PREDICT} --model {{after}}/model --input {{data}}/photos --truth {{data}}/truth",),
        processes=2,
        after="strong augmentation and crops",
    ),
    Case(
        "export",
        (
            "export {after}/model {out}/model.onnx",
            f"{PREDICT} --model {{out}}/model.onnx --input {{data}}/photos --probabilities",
        ),
        after="images",
    ),
    Case(
        "fine-tuning of a trained model",
        (f"{IMAGES} --output-dir {{out}} --init-from {{after}}/model --num-workers 0 --batch-size 4 --max-steps 3",),
        after="images",
    ),
    Case(
        "review, calibration and comparison",
        (
            f"train.py --dataset {{data}}/images/train --fold 1/2 --augment strong {SMALL}",
            "review.py --runs {after}/1 {after}/2 --output {out}/review",
            "review.py --runs {out} --calibrate",
            f"{PREDICT} --model {{out}}/model --input {{data}}/photos --probabilities",
            "compare.py {after}/1 {after}/2 {out} --output {out}/comparison.html",
        ),
        after="folds and their ensemble",
    ),
)


def case_named(name: str) -> Case:
    """The case of that name."""
    return next(case for case in CASES if case.name == name)


def write_data(folder: Path) -> None:
    """All data sets and inputs of the cases."""
    import tifffile

    # multiples of most batches: what fills a short step may change more often than other numbers
    tiny_sets.write_images(folder / "images" / "train", 12, (48, 64), seed=0)
    tiny_sets.write_images(folder / "images" / "val", 5, (48, 64), seed=1)
    tiny_sets.write_images(folder / "mixed", 3, (61, 75), seed=2)
    (folder / "mixed" / "images").rename(folder / "photos")
    (folder / "mixed" / "masks").rename(folder / "truth")
    pixels = np.random.default_rng(7).integers(0, 256, (700, 90, 3), dtype=np.uint8)
    tifffile.imwrite(folder / "tall.tif", pixels, photometric="rgb", tile=(64, 64), compression="zlib")
    tiny_sets.write_volumes(folder / "volumes", 6)
    tiny_sets.write_coco(folder / "coco", 16)
    tiny_sets.write_tars(folder / "tars", folder / "images")
    tiny_sets.write_encoder(folder / "encoder")
    tiny_sets.write_objects(folder / "objects", 12)
    tiny_sets.write_points(folder / "points", 12)
    tiny_sets.write_point_volumes(folder / "point_volumes", 6)
    tiny_sets.write_overlapping(folder / "overlapping", 12)
    tiny_sets.write_partly_labeled(folder / "partly_labeled", 15)
    tiny_sets.write_rasters(folder / "rasters", 8)
    tiny_sets.write_rasters(folder / "fields", 8, polygons=True)
    tiny_sets.write_parquet(folder / "parquet", folder / "images")


def command_line(checkout: Path, words: list[str], processes: int) -> list[str]:
    """The command of one line of a case."""
    script, *flags = words
    if script == "export":
        module = "inference.export" if (checkout / "inference" / "export").is_dir() else "unet.export"
        return [sys.executable, "-m", module, *flags]
    command = [str(checkout / script), *flags]
    if processes == 1:
        return [sys.executable, *command]
    profile = checkout / "accelerate_configs" / "multi_cpu.yaml"
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(profile)]
    return [*launch, "--main_process_port", "0", "--num_processes", str(processes), *command]


def run_case(case: Case, checkout: Path, folder: Path) -> None:
    """Run the commands of a case in its folder; a command that fails ends the program."""
    cases = Path("cases")  # paths in what is written do not depend on the folder, which the commands run in
    out = folder / case.folder(cases)
    places = {"data": "data", "out": str(case.folder(cases))}
    if case.after is not None:
        places["after"] = str(case_named(case.after).folder(cases))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
    environment["ACCELERATE_MIXED_PRECISION"] = "no"  # of launches that name no precision
    environment |= {"PYTHONPATH": str(checkout), "XDG_CACHE_HOME": str(folder / "cache")}
    for command in case.commands:
        words = [word.format(**places) for word in command.split()]
        if words[0] == "export":
            out.mkdir(parents=True, exist_ok=True)
        line = command_line(checkout, words, case.processes)
        process = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
        if process.returncode != 0:
            raise SystemExit(f"{checkout}: {' '.join(words)} ended with {process.returncode}:\n{process.stderr}")
        if words[0] in PRINTED:
            (out / f"printed_by_{Path(words[0]).stem}.txt").write_text(process.stdout)


def digest(value: bytes) -> str:
    """A short name of some bytes."""
    return hashlib.sha256(value).hexdigest()[:16]


def array_digest(values: np.ndarray) -> str:
    """A short name of an array's type, shape and values."""
    return digest(f"{values.dtype} {values.shape}".encode() + np.ascontiguousarray(values).tobytes())


def file_numbers(path: Path) -> Iterator[tuple[str, str]]:
    """What a file holds, each with its digest; nothing for files whose numbers are not compared."""
    if path.name == "metrics.jsonl":
        for line in path.read_text().splitlines():
            record = json.loads(line)
            step = record.get("step")
            for key, value in record.items():
                if key.startswith(("train/", "eval/")):
                    yield f"{key} at step {step}", repr(value)
    elif path.name == "metrics.json":
        report = json.loads(path.read_text())
        calibration = report.pop("calibration", None)  # earlier versions do not have it
        without_folders = re.sub(r'"image": "[^"]*/', '"image": "', json.dumps(report, indent=2) + "\n")
        yield "scores", digest(without_folders.encode())
        if calibration is not None:
            yield "calibration", digest(json.dumps(calibration).encode())
    elif path.suffix == ".safetensors":
        for name, tensor in sorted(load_file(path).items()):
            yield name, array_digest(tensor.float().numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy())
    elif path.suffix == ".npy":
        yield "values", array_digest(np.load(path))
    elif path.suffix == ".png":
        with Image.open(path) as picture:
            yield "pixels", array_digest(np.asarray(picture))
    elif path.suffix == ".tif":
        yield from tiff_numbers(path)
    elif path.suffix == ".geojson" or path.name in ("objects.json", "points.json"):
        yield "content", digest(json.dumps(json.loads(path.read_text()), sort_keys=True).encode())
    elif path.name.startswith("printed_by_"):
        yield "numbers", digest(" ".join(re.findall(r"\d+\.\d+", path.read_text())).encode())
    elif path.suffix in (".csv", ".txt"):
        yield "lines", digest(path.read_bytes())
    elif path.name.endswith(".nii.gz"):
        import nibabel

        volume = nibabel.load(path)
        yield "voxels", array_digest(np.asarray(volume.dataobj))
        yield "affine", array_digest(volume.affine)


def tiff_numbers(path: Path) -> Iterator[tuple[str, str]]:
    """The pixels of a TIFF, and its place in the world if it has one."""
    import tifffile

    with tifffile.TiffFile(path) as file:
        yield "pixels", array_digest(file.asarray())
        place = [(name, file.pages[0].tags[name].value) for name in PLACE_TAGS if name in file.pages[0].tags]
    if place:
        yield "place", digest(repr(place).encode())


def case_numbers(folder: Path) -> dict[str, str]:
    """All numbers of the files of a case; pictures of the report are drawn anew with each version, and left out."""
    numbers = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not {"predictions", "tensorboard"} & {*path.parts}:
            numbers |= {f"{name}: {what}": value for what, value in file_numbers(path)}
    return numbers


def measure(checkout: Path, names: list[str]) -> Numbers:
    """The numbers of the named cases, computed by a checkout."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_data(folder / "data")
        selected_cases = [case for case in CASES if not names or case.name in names]
        needed = [case_named(case.after) for case in selected_cases if case.after is not None]
        independent = [case for case in selected_cases if case.after is None]
        independent += [case for case in dict.fromkeys(needed) if case not in independent]
        dependent = [case for case in selected_cases if case.after is not None]
        for cases in (independent, dependent):
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(lambda case: run_case(case, checkout, folder), cases))
        return {case.name: case_numbers(case.folder(folder / "cases")) for case in selected_cases}


def main() -> None:
    record_or_compare(__doc__, measure, [case.name for case in CASES])


if __name__ == "__main__":
    main()
