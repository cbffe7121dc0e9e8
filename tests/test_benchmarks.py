"""What the benchmarks compute from their measurements: a speed, a share or a loss that is wrong would be published."""

import importlib.util
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from support.class_loss import ClassLoss
from support.folders import write_folder
from support.launches import launch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import mixed_sizes, objects
from benchmarks.candidates import CANDIDATES, changes
from benchmarks.data import bench_memory, write_pairs
from benchmarks.landmarks import (
    LOSSES,
    along_axes,
    center_of_mass,
    cubes_in_place,
    drawn_maps,
    readings,
    target_of,
    task_of,
)
from benchmarks.mixed_sizes import losses, seen_images, write_photographs
from benchmarks.roofline import CAST_BYTES, NORM, RELU, WEIGHT_BYTES, layout_seconds, other_bytes
from benchmarks.sets import prepare
from benchmarks.side_by_side import VOID, class_iou
from benchmarks.train import step_seconds, write_stand_ins
from tasks.matching import label_numbers
from tasks.objects import Objects, ObjectTarget
from tasks.step_loss import StepLoss
from unet import UNet, UNetConfig

SMALL = UNetConfig(base_channels=8, depth=2)
OPERATORS = ("relu_", "threshold_backward", "cat", "add.Tensor", "max_pool2d_with_indices")
NORMS = ("native_batch_norm", "native_batch_norm_backward")


def test_steps_of_pytorch_unet_are_timed_after_the_warm_up():
    ends = [(10, True), (11, True), (12, True), (14, True), (20, False), (23, True), (27, True)]
    marks = [{"seconds": seconds, "step": step} for seconds, step in ends]
    assert step_seconds(marks) == [14 - 12, 23 - 20, 27 - 23]


def test_the_stand_in_for_wandb_marks_steps_and_evaluations(tmp_path, monkeypatch):
    write_stand_ins(tmp_path / "stand_ins")
    spec = importlib.util.spec_from_file_location("wandb_stand_in", tmp_path / "stand_ins" / "wandb.py")
    spec.loader.exec_module(wandb := importlib.util.module_from_spec(spec))
    monkeypatch.setenv("MARKS", str(tmp_path / "marks.jsonl"))
    run = wandb.init(project="U-Net", resume="allow", anonymous="must")
    run.config.update({"epochs": 1})
    run.log({"train loss": 0.5, "step": 1, "epoch": 1})
    run.log(
        {"validation Dice": 0.5, "images": wandb.Image(torch.zeros(1)), "Weights/x": wandb.Histogram(torch.ones(1))}
    )
    marks = [json.loads(line) for line in (tmp_path / "marks.jsonl").read_text().splitlines()]
    assert [mark["step"] for mark in marks] == [True, False]
    assert marks[0]["seconds"] < marks[1]["seconds"]


def test_memory_is_measured_after_each_of_five_epochs(tmp_path):
    write_pairs(tmp_path / "start", 10, (40, 48), distinct=10)
    memory = bench_memory(tmp_path, theirs_too=False)
    assert [*memory] == [f"epoch {number}" for number in range(1, 6)]
    assert all(value.endswith(" MiB") and float(value.split()[0]) > 0 for value in memory.values())


def test_a_candidate_of_the_recipe_may_be_several_changes():
    flags, patches = changes("scale 0.5 + gamma + batches of 4")
    assert flags == ["--scale", "0.5", "--batch-size", "4"]
    assert patches == [CANDIDATES["gamma"][1]]
    assert changes("recipe") == ([], [])


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8], ids=["training", "evaluation"])
def test_lovasz_of_a_prediction_without_doubt_is_one_minus_the_iou(monkeypatch, dtype):
    monkeypatch.setattr(StepLoss, "sums", StepLoss.sums)
    CANDIDATES["Lovasz-softmax instead of Dice"][1]()
    truth, predicted = torch.tensor([[[0, 0, 1, 1, 255]]]), torch.tensor([[[0, 1, 1, 1, 0]]])
    logits = 100.0 * torch.nn.functional.one_hot(predicted, 3).movedim(-1, 1)
    regions = ClassLoss(3, "ce+logdice").sums(logits, truth.to(dtype))[1]
    assert regions.item() == pytest.approx((1 - 1 / 2) + (1 - 2 / 3))  # of classes 0 and 1; 2 is not in the truth


def test_every_fifth_photograph_validates(tmp_path):
    for folder, ending in (("Training_Images", "jpg"), ("Ground_Truth", "png")):
        (tmp_path / "people" / folder).mkdir(parents=True)
        for number in range(1, 12):
            (tmp_path / "people" / folder / f"{number}.{ending}").touch()
    folder = prepare(tmp_path, tmp_path / "results", ["people"])["people"]
    numbers = {}
    for path in folder.glob("*/*"):
        numbers[str(path.relative_to(folder))] = sorted(int(file.stem) for file in path.iterdir())
    training = [1, 2, 3, 4, 6, 7, 8, 9, 11]
    assert numbers == {
        "train/images": training,
        "train/masks": training,
        "val/images": [5, 10],
        "val/masks": [5, 10],
    }


def test_scores_side_by_side_leave_out_void_pixels(tmp_path):
    for folder, rows in (("truth", [[0, 0, 7, VOID]]), ("masks", [[0, VOID, 7, 7]])):
        (tmp_path / folder).mkdir()
        Image.fromarray(np.array(rows, np.uint8)).save(tmp_path / folder / "a.png")
    assert class_iou(tmp_path / "masks", tmp_path / "truth", [0, 7]) == [1 / 2, 1]


class BytesMoved(TorchDispatchMode):
    """Bytes of inputs and outputs by operator, but for views."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: dict[str, int] = {}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        if not operator.is_view:
            tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            self.moved[operator.name()] = self.moved.get(operator.name(), 0) + size
        return result


def test_the_rooflines_bytes_are_those_of_the_networks_operators():
    with BytesMoved() as counted:
        UNet(SMALL)(torch.zeros(2, 3, 64, 96)).sum().backward()
    moved = {name: counted.moved[f"aten::{name}"] for name in (*OPERATORS, *NORMS)}
    relu = moved["relu_"] + moved["threshold_backward"]
    # an operator's tensors count once here, but a norm reads its input twice, and backward its gradient too
    norm = sum(moved[name] for name in NORMS) + relu * 3 / RELU
    assert norm == pytest.approx(relu * NORM / RELU, rel=0.01)  # beside the activations a few numbers a channel
    # of its three tensors, backward the pooling only touches those that it has forward
    rest = moved["cat"] + moved["add.Tensor"] + 2 * moved["max_pool2d_with_indices"]
    assert bytes_of(SMALL) == pytest.approx(norm + relu + rest, rel=0.01)
    assert bytes_of(SMALL, fused=True) == pytest.approx(norm + rest, rel=0.01)


def test_the_rooflines_bytes_follow_precision_and_weights():
    assert bytes_of(SMALL, weights=100) - bytes_of(SMALL) == 100 * WEIGHT_BYTES
    assert bytes_of(SMALL, weights=100, itemsize=2) - bytes_of(SMALL, itemsize=2) == 100 * (WEIGHT_BYTES + CAST_BYTES)
    relu = bytes_of(SMALL) - bytes_of(SMALL, fused=True)
    assert bytes_of(SMALL, itemsize=2) - bytes_of(SMALL, itemsize=2, fused=True) == relu / 2


def bytes_of(config: UNetConfig, weights: int = 0, itemsize: int = 4, fused: bool = False) -> float:
    """The bytes for two images of 64 x 96."""
    return other_bytes(config, (2, 64, 96), weights, itemsize, fused=fused)


def test_the_limit_has_every_convolution_in_both_layouts():
    times = layout_seconds(UNet(SMALL), (2, 3, 32, 48), torch.float32, repeats=1)
    assert len(times) == 2 * 5 + 2 + 1  # two in each of five blocks, two transposed ones, the last
    assert all(len(layouts) == 2 and min(layouts) > 0 for layouts in times)


def test_padding_counts_what_is_of_no_image(tmp_path):
    for split in ("train", "val"):
        write_folder(tmp_path / split, 1, seed=0, size=(40, 56))
    write_folder(tmp_path / "wide", 1, seed=1, size=(48, 64))
    for kind in ("images", "masks"):
        (file,) = (tmp_path / "wide" / kind).iterdir()
        file.rename(tmp_path / "train" / kind / f"wide{file.suffix}")
    whole, padded = 40 * 56 + 48 * 64, 48 * 64
    together = seen_images(tmp_path, range(3, 5), processes=1, batch_size=2)
    assert together == pytest.approx({"padding": 100 * (1 - whole / (2 * padded)), "relative_size": 1})
    with_filler = seen_images(tmp_path, range(3, 5), processes=3, batch_size=2)
    assert with_filler == pytest.approx({"padding": 100 * (1 - whole / (3 * padded)), "relative_size": 1})
    assert seen_images(tmp_path, range(2), processes=1, batch_size=1)["padding"] == 0
    sizes = sorted(seen_images(tmp_path, range(step, step + 1), 1, 1)["relative_size"] for step in range(2))
    assert sizes == pytest.approx([2 * 40 * 56 / whole, 2 * 48 * 64 / whole])


def test_photographs_of_many_sizes_have_masks_of_their_size(tmp_path, monkeypatch):
    monkeypatch.setattr(mixed_sizes, "SIZES", 12)
    monkeypatch.setattr(mixed_sizes.subprocess, "run", lambda command, **_: launch(*command[1:]))
    write_photographs(tmp_path / "data", side=16)
    sizes = {}
    for kind in ("images", "masks"):
        files = sorted((tmp_path / "data" / "train" / kind).iterdir())
        sizes[kind] = {file.name: Image.open(file).size for file in files}
    assert sizes["images"] == sizes["masks"]
    image_sizes = set(sizes["images"].values())
    assert len(image_sizes) == 12
    assert min(map(min, image_sizes)) >= 8
    assert max(map(max, image_sizes)) <= 24


def test_losses_add_up_to_what_is_lost():
    alone = {"padding": 10.0, "data_wait": 1.0, "communication": 0.0}
    shares = losses({"padding": 19.0, "data_wait": 3.0, "communication": 5.0}, alone, efficiency=0.8)
    expected = {"padding": 10, "data wait": 2, "communication": 5, "the rest": 3}
    assert shares == pytest.approx(expected)


@pytest.mark.parametrize("size", [[20, 24], [12, 14, 16]])
def test_each_way_to_the_targets_of_landmarks_gives_the_same(size):
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(3, len(size), generator=generator) * (torch.tensor(size) - 1)
    logits = torch.randn(3, *size, generator=generator)
    expected_sums = (logits * drawn_maps(points, size)).flatten(1).sum(dim=1)
    torch.testing.assert_close(along_axes(points, logits), expected_sums, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        (logits * cubes_in_place(points, size)).flatten(1).sum(dim=1), expected_sums, rtol=0, atol=0.01
    )


def test_places_are_read_from_drawn_gaussians_in_two_ways():
    points = torch.tensor([[9.3, 10.6], [11.0, 8.25]], dtype=torch.float64)
    logits = drawn_maps(points, [20, 20]).clamp_min(1e-6).log()
    places = readings(logits, task_of(2, [20, 20]))
    torch.testing.assert_close(places["parabola"], points, rtol=0, atol=1e-6)
    assert (center_of_mass(logits, 4) - points).abs().max() < 0.15


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_map_at_its_point_costs_less_than_one_beside_it(loss):
    size = [20, 24]
    points = torch.tensor([[[5.0, 6.0], [12.0, 15.0]]])
    own = task_of(2, size)
    task = loss(own.names, own.sigma, own.nowhere, own.partners)
    costs = []
    for shift in (0, 2):
        maps = drawn_maps(points + shift, size).clamp(1e-4, 1 - 1e-4)
        partial = task.partial(maps.logit(), target_of(points, size))
        costs.append(task.finish(partial)[0].item())
    assert 0 < costs[0] < 0.9 * costs[1]


def label_image() -> np.ndarray:
    """Four objects, two of which touch, and a gap in their numbers."""
    ids = np.zeros((60, 90), np.int32)
    ids[10:20, 10:22], ids[10:20, 22:30], ids[26:50, 12:18], ids[5:12, 70:90] = 1, 2, 5, 7
    return ids


def test_border_weights_follow_equation_2_of_the_paper():
    ids = label_image()
    pixels = np.argwhere(np.ones_like(ids)).reshape(*ids.shape, 1, 2)
    distances = []
    for number in (1, 2, 5, 7):
        squares = ((pixels - np.argwhere(ids == number)) ** 2).sum(axis=-1)
        distances.append(np.sqrt(squares.min(axis=-1)))
    first, second, *_ = np.sort(distances, axis=0)
    expected = 10 * np.exp(-((first + second) ** 2) / (2 * 5**2))
    weights = objects.border_weights(ids)
    assert weights.dtype == np.float64
    assert weights.max() > 9
    np.testing.assert_allclose(weights, expected, rtol=1e-12, atol=1e-15)
    assert (objects.border_weights(np.where(ids == 1, 1, 0)) == 0).all()  # of one object there is no second


def test_maps_of_candidates_tell_touching_objects_apart():
    ids = torch.from_numpy(label_image().astype(np.int64))[None]
    is_known = torch.ones_like(ids, dtype=torch.bool)
    edges = objects.edge_map(ids, is_known)[0]
    assert edges[15, 15] == 1
    assert edges[15, 21] == edges[15, 22] == edges[10, 15] == edges[0, 0] == 0
    centers = objects.center_map(ids, is_known)[0]
    assert centers[14, 15] > 0.95 > centers[14, 20] > centers[14, 21]
    assert centers[0, 0] == 0
    target = ObjectTarget((ids > 0).to(torch.uint8), ids)
    maps = objects.render_apart(Objects(), target)
    assert (maps.mask[0, 15, 20:24] == torch.tensor([1, 0, 0, 1])).all()
    assert maps.mask[0, 10, 15] == 1
    gaps = np.where((target.mask - maps.mask)[0].numpy() > 0, 0, label_image())
    np.testing.assert_allclose(maps.depth[0], objects.border_weights(gaps), rtol=1e-6, atol=1e-12)


def test_weighted_cross_entropy_is_that_of_the_paper():
    ids = torch.from_numpy(label_image().astype(np.int64))[None]
    target = ObjectTarget((ids > 0).to(torch.uint8), ids)
    target.mask[0, :4] = 255
    maps = objects.render_apart(Objects(), target)
    logits = torch.randn(1, 3, 60, 90, generator=torch.Generator().manual_seed(0))
    *_, weighted = objects.weighted_partial(Objects(), logits, maps)
    errors = F.cross_entropy(logits[:, :2], maps.mask.long(), ignore_index=255, reduction="none")
    assert weighted.item() == pytest.approx((errors * maps.depth).sum().item(), rel=1e-5)


def test_components_are_a_way_of_decoding():
    answers = objects.answers_of(label_image() > 0, np.ones((60, 90)))
    assert label_numbers(objects.COMPONENTS.labels(answers, Objects())).max() == 3
    depth = objects.normalized_depth(torch.from_numpy(label_image())[None].long(), torch.ones(1, 60, 90).bool())
    answers = objects.answers_of(label_image() > 0, depth[0].numpy())
    assert label_numbers(objects.Decoding(1.0, 26).labels(answers, Objects())).max() == 4


def test_training_discs_are_recognized_as_objects():
    images = [objects.draw_discs(np.random.default_rng(index), 256, 19 - index) for index in range(3)]
    assert [int(ids.max()) for ids in images] == [19, 18, 17]
    assert objects.picture(images[0], np.random.default_rng(0)).shape == (256, 256)
