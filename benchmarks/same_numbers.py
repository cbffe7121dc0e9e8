"""Whether two checkouts compute the same numbers: losses and scores, weights, masks and probabilities, bit for bit.

python benchmarks/same_numbers.py record numbers.json                  writes the numbers of this checkout
python benchmarks/same_numbers.py compare numbers.json                 this checkout against the recorded numbers
python benchmarks/same_numbers.py compare ../other-checkout            this checkout against another one

Each case is a few tiny runs of train.py, predict.py and the ONNX export, on generated images and volumes. All numbers
of metrics.jsonl count but speeds; files count by their decoded content. A comparison prints what differs and ends with
exit code 1 if anything does. Numbers are of one processor and one version of torch: record and compare on one machine.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
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

ROOT = Path(__file__).resolve().parent.parent
Numbers = dict[str, dict[str, str]]  # case -> what was computed -> its digest

IMAGES = "train.py --dataset {data}/images --tracker none --log-every 1 --seed 3"
TINY = "--plan none --base-channels 4 --num-workers 0 --batch-size 4"
VOLUMES = "train.py --dataset {data}/volumes --tracker none --log-every 1 --base-channels 4 --num-workers 0"
PREDICT = "predict.py --output {out}/masks --overwrite"


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
            " --classes 0=ground,100=bright,200=dark --crop-size 32 32"
            f" {TINY} --depth 2 --max-steps 4",
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
)


def case_named(name: str) -> Case:
    """The case of that name."""
    return next(case for case in CASES if case.name == name)


def write_images(folder: Path, count: int, size: tuple[int, int], seed: int) -> None:
    """`count` noisy photographs, each with a bright and a dark box, and masks of the values 0, 100 and 200."""
    rng = np.random.default_rng(seed)
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for number in range(count):
        image = rng.integers(60, 160, (*size, 3), dtype=np.uint8)
        mask = np.zeros(size, np.uint8)
        for value, change in ((100, 90), (200, -60)):
            top, left = (int(rng.integers(0, side // 2)) for side in size)
            box = np.s_[top : top + size[0] // 3, left : left + size[1] // 4]
            image[box] = np.clip(image[box].astype(int) + change, 0, 255).astype(np.uint8)
            mask[box] = value
        Image.fromarray(image).save(folder / "images" / f"photo_{number:02}.png")
        Image.fromarray(mask).save(folder / "masks" / f"photo_{number:02}.png")


def write_volumes(folder: Path, count: int) -> None:
    """`count` scans of uneven spacing with a bright box each, in the Medical Segmentation Decathlon's layout."""
    import nibabel

    affine = np.diag([1.0, 1.0, 2.5, 1.0])
    training = []
    for number in range(count):
        rng = np.random.default_rng(number)
        image = rng.integers(0, 100, (20, 24, 12)).astype(np.int16)
        label = np.zeros(image.shape, np.uint8)
        corner = rng.integers(2, 8, 3)
        box = tuple(slice(start, start + side) for start, side in zip(corner, (8, 9, 4), strict=True))
        image[box] += 150
        label[box] = 1
        names = {}
        for key, kind, voxels in (("image", "imagesTr", image), ("label", "labelsTr", label)):
            (folder / kind).mkdir(parents=True, exist_ok=True)
            nibabel.save(nibabel.Nifti1Image(voxels, affine), folder / kind / f"scan_{number:02}.nii.gz")
            names[key] = f"./{kind}/scan_{number:02}.nii.gz"
        training.append(names)
    content = {"modality": {"0": "MRI"}, "labels": {"0": "background", "1": "box"}, "training": training}
    (folder / "dataset.json").write_text(json.dumps(content))


def write_coco(folder: Path, count: int) -> None:
    """`count` images with two polygons each."""
    write_images(folder, count, (48, 40), seed=5)
    shutil.rmtree(folder / "masks")
    images, annotations = [], []
    for number in range(count):
        images.append({"id": number, "file_name": f"photo_{number:02}.png", "height": 48, "width": 40})
        for category in (1, 2):
            left, top = 4 * category + number, 6 * category
            polygon = [left, top, left + 15.5, top + 2, left + 9, top + 17.5]
            entry = {"id": 2 * number + category, "image_id": number, "category_id": category}
            annotations.append(entry | {"segmentation": [polygon], "iscrowd": 0})
    categories = [{"id": 1, "name": "cell"}, {"id": 2, "name": "nucleus"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "_annotations.coco.json").write_text(json.dumps(content))


def write_tars(folder: Path, source: Path) -> None:
    """The training images of `source` in two tar files, and its validation images in one."""
    import tarfile

    folder.mkdir()
    for split, shards in (("train", 2), ("val", 1)):
        names = sorted(path.stem for path in (source / split / "images").iterdir())
        for shard in range(shards):
            with tarfile.open(folder / f"{split}-{shard:02}.tar", "w") as tar:
                for name in names[shard::shards]:
                    tar.add(source / split / "images" / f"{name}.png", f"{name}.image.png")
                    tar.add(source / split / "masks" / f"{name}.png", f"{name}.mask.png")


def write_encoder(folder: Path) -> None:
    """A tiny ResNet of transformers with random weights."""
    import transformers

    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=8, layer_type="basic", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1]
    )
    settings = json.loads(config.to_json_string(use_diff=False))
    backbone = transformers.AutoBackbone.from_config(transformers.AutoConfig.for_model(**settings))
    backbone.save_pretrained(folder)


def write_data(folder: Path) -> None:
    """All data sets and inputs of the cases."""
    import tifffile

    # multiples of most batches: what fills a short step may change more often than other numbers
    write_images(folder / "images" / "train", 12, (48, 64), seed=0)
    write_images(folder / "images" / "val", 5, (48, 64), seed=1)
    write_images(folder / "mixed", 3, (61, 75), seed=2)
    (folder / "mixed" / "images").rename(folder / "photos")
    (folder / "mixed" / "masks").rename(folder / "truth")
    pixels = np.random.default_rng(7).integers(0, 256, (700, 90, 3), dtype=np.uint8)
    tifffile.imwrite(folder / "tall.tif", pixels, photometric="rgb", tile=(64, 64), compression="zlib")
    write_volumes(folder / "volumes", 6)
    write_coco(folder / "coco", 16)
    write_tars(folder / "tars", folder / "images")
    write_encoder(folder / "encoder")


def command_line(checkout: Path, words: list[str], processes: int) -> list[str]:
    """The command of one line of a case."""
    if words[0] == "export":
        module = "inference.export" if (checkout / "inference" / "export").is_dir() else "unet.export"
        return [sys.executable, "-m", module, *words[1:]]
    if processes == 1:
        return [sys.executable, *words]
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "accelerate_configs/multi_cpu.yaml"]
    return [*launch, "--main_process_port", "0", "--num_processes", str(processes), *words]


def run_case(case: Case, checkout: Path, folder: Path) -> None:
    """Run the commands of a case in its folder; a command that fails ends the program."""
    out = case.folder(folder / "cases")
    places = {"data": str(folder / "data"), "out": str(out)}
    if case.after is not None:
        places["after"] = str(case_named(case.after).folder(folder / "cases"))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
    environment |= {"PYTHONPATH": str(checkout), "XDG_CACHE_HOME": str(folder / "cache")}
    for command in case.commands:
        words = [word.format(**places) for word in command.split()]
        if words[0] == "export":
            out.mkdir(parents=True, exist_ok=True)
        line = command_line(checkout, words, case.processes)
        process = subprocess.run(line, cwd=checkout, env=environment, capture_output=True, text=True, timeout=600)
        if process.returncode != 0:
            raise SystemExit(f"{checkout}: {' '.join(words)} ended with {process.returncode}:\n{process.stderr}")


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
    elif path.suffix in (".png", ".tif"):
        with Image.open(path) as picture:
            yield "pixels", array_digest(np.asarray(picture))
    elif path.name.endswith(".nii.gz"):
        import nibabel

        volume = nibabel.load(path)
        yield "voxels", array_digest(np.asarray(volume.dataobj))
        yield "affine", array_digest(volume.affine)


def case_numbers(folder: Path) -> dict[str, str]:
    """All numbers of the files of a case; pictures of the report are drawn anew with each version, and left out."""
    numbers = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not name.startswith(("predictions/", "tensorboard/")):
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


def differences(here: Numbers, there: Numbers) -> Iterator[str]:
    """A line for each number that differs, or that one side alone has."""
    for case in here:
        for name in sorted(here[case].keys() | there.get(case, {}).keys()):
            values = here[case].get(name, "missing"), there.get(case, {}).get(name, "missing")
            if values[0] != values[1]:
                yield f"{case}: {name}: {values[0]} here, {values[1]} there"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("other", type=Path, help="the file to write, or the file or checkout to compare with")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="the checkout that is measured (default: this one)")
    parser.add_argument("--only", nargs="+", default=[], metavar="CASE", choices=[case.name for case in CASES])
    args = parser.parse_args()
    here = measure(args.checkout.resolve(), args.only)
    if args.action == "record":
        args.other.write_text(json.dumps(here, indent=1) + "\n")
        print(f"{sum(map(len, here.values()))} numbers of {len(here)} cases written to {args.other}")
        return
    there = measure(args.other.resolve(), args.only) if args.other.is_dir() else json.loads(args.other.read_text())
    difference_lines = list(differences(here, there))
    print("\n".join(difference_lines) or f"equal: {sum(map(len, here.values()))} numbers of {len(here)} cases")
    raise SystemExit(1 if difference_lines else 0)


if __name__ == "__main__":
    main()
