"""Classes that may overlap: loss and scores against written-out ones, exact however they are split.

Modules: tasks/overlapping.py, tasks/regions.py, tasks/pixels_and_regions.py, inference/decoding/overlapping.py,
inference/decoding/regions.py.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from data_utils.loading.augment import augment
from data_utils.loading.draws import draw, pack_draws
from inference.decoding.overlapping import OverlapDecoder
from inference.decoding.regions import RegionDecoder
from runtime.errors import ModelError
from tasks import overlapping, task_of_model
from tasks.classes import ClassTarget
from tasks.overlapping import Overlapping, OverlapTarget, class_tables, pack_bits, pack_target, unpack_bits
from tasks.pixels_and_regions import LOSSES
from tasks.regions import Region, Regions, last_bits
from tasks.step_loss import StepLoss
from unet import Preprocess
from unet.config import UNetConfig

FLOAT64 = {"rtol": 1e-12, "atol": 0}  # sums over a few hundred pixels in another order
NAMES = ("heart", "lung", "bone")
BRATS = (Region("whole", (1, 2, 3)), Region("core", (2, 3)), Region("active", (3,)))


def sample(batch: int = 4, classes: int = 3, seed: int = 0) -> tuple[torch.Tensor, OverlapTarget]:
    """Logits, and targets of which each class is unknown in a fifth of the pixels; one is absent from an image."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, classes, 9, 7, generator=generator, dtype=torch.float64) * 3
    known_bits = torch.zeros(batch, 9, 7, dtype=torch.int64)
    truth = torch.zeros_like(known_bits)
    for bit in range(classes):
        is_known = torch.rand(known_bits.shape, generator=generator) < 0.8
        has_class = (torch.rand(known_bits.shape, generator=generator) < 0.4) & is_known
        known_bits |= is_known.long() << bit
        truth |= has_class.long() << bit
    truth[0] &= ~4
    return logits, OverlapTarget(truth, known_bits)


def split(bits: torch.Tensor, classes: int = 3) -> torch.Tensor:
    """(B, classes, H, W) bool."""
    return torch.stack([(bits & 1 << bit) > 0 for bit in range(classes)], dim=1)


@pytest.mark.parametrize("kind", LOSSES)
def test_the_loss_is_that_of_each_class_by_itself(kind):
    logits, targets = sample()
    weights = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    loss = StepLoss(Overlapping(NAMES, kind, weights))
    truth, is_known = split(targets.truth).double(), split(targets.known)
    pixels, pixel_count, regions, pairs = 0.0, 0.0, 0.0, 0
    for index in range(3):
        x, t, k = logits[:, index], truth[:, index], is_known[:, index]
        entropy = F.binary_cross_entropy_with_logits(x, t, reduction="none")
        if kind.startswith("focal"):
            entropy = (1 - torch.exp(-entropy)) ** 2 * entropy
        pixels = pixels + weights[index] * entropy[k].sum()
        pixel_count += weights[index] * k.sum() / 3
        for image in range(len(x)):
            present = k[image]
            p, true = x[image].sigmoid()[present], t[image][present]
            if not true.any():
                continue
            pairs += 1
            hits, area = 2 * (p * true).sum(), p.sum() + true.sum()
            regions = regions + (-((hits + 1e-3) / (area + 1e-3)).log() if "log" in kind else 1 - hits / area)
    expected = (0 if kind == "dice" else pixels / pixel_count) + (0 if kind == "ce" else regions / pairs)
    torch.testing.assert_close(loss(logits, targets, loss.counts(targets)), expected, **FLOAT64)
    assert loss.counts(targets)[1] == pairs == 11  # the third class is not in the first image
    assert loss.counts(targets).dtype == torch.float64  # float32 cannot count beyond 2^24


def test_shares_of_micro_batches_and_sums_of_strips_add_up():
    logits, targets = sample()
    task = Overlapping(NAMES)
    loss = StepLoss(task)
    counts = loss.counts(targets)
    shares = [loss(logits[[i]], targets.at(slice(i, i + 1)), counts) for i in range(4)]
    torch.testing.assert_close(sum(shares), loss(logits, targets, counts), **FLOAT64)
    strips = [task.partial(logits[:, :, rows], targets.at((slice(None), rows))) for rows in (slice(4), slice(4, 9))]
    joined = tuple(map(torch.add, *strips))
    torch.testing.assert_close(task.finish(joined), loss.sums(logits, targets), **FLOAT64)


def test_what_is_unknown_for_a_class_moves_nothing_of_it():
    logits, targets = sample()
    task = Overlapping(NAMES)
    moved = torch.where(split(targets.known), logits, logits + 5)
    for ours, theirs in zip(task.partial(logits, targets), task.partial(moved, targets), strict=True):
        assert torch.equal(ours, theirs)


def test_scores_are_those_of_a_numpy_count():
    logits, targets = sample(seed=3)
    task = Overlapping(NAMES)
    scores = task.new_scores(4)
    prediction = OverlapDecoder(task).decode(logits, dim=1)
    comparisons = []
    for index in range(4):
        alone = task.new_scores(1)
        for ours, place in ((scores, index), (alone, 0)):
            ours.add(prediction[[index]], targets.at(slice(index, index + 1)), place)
        comparisons.append(alone.comparison)
    assert scores.image_comparison == pytest.approx(comparisons)
    truth, is_known = (split(bits).numpy() for bits in (targets.truth, targets.known))
    predicted = (logits > 0).numpy()
    for index, name in enumerate(NAMES):
        t, f = truth[:, index][is_known[:, index]], predicted[:, index][is_known[:, index]]
        expected = {
            "iou": (t & f).sum() / (t | f).sum(),
            "dice": 2 * (t & f).sum() / (t.sum() + f.sum()),
            "precision": (t & f).sum() / f.sum(),
            "recall": (t & f).sum() / t.sum(),
        }
        for metric, value in expected.items():
            assert scores.values[metric][index] == pytest.approx(value, abs=1e-15)
        assert scores.sums[index].sum() == is_known[:, index].sum()
        assert scores.record()[f"eval/iou/{name}"] == scores.values["iou"][index]
    assert scores.comparison == pytest.approx(np.mean(scores.values["iou"]))
    restored = task.scores_from_json(scores.to_json())
    assert restored.record() == scores.record()
    assert restored.image_comparison == pytest.approx(scores.image_comparison)
    assert len(set(scores.image_comparison)) == 4


def test_a_class_that_is_nowhere_has_no_score_and_one_that_is_missed_is_named():
    task = Overlapping(NAMES)
    scores = task.new_scores(1)
    truth = torch.tensor([[[1, 3], [0, 1]]], dtype=torch.int32)
    scores.add(torch.tensor([[[1, 1], [0, 0]]]), OverlapTarget(truth, torch.full_like(truth, 7)), 0)
    assert scores.values["iou"] == [2 / 3, 0, None]
    assert scores.comparison == 1 / 3
    assert scores.summary() == "mean IoU 0.3333, mean Dice 0.4000; nothing was found of lung"
    assert scores.image_comparison == pytest.approx([1 / 3])
    scores.add(torch.zeros_like(truth), OverlapTarget(torch.zeros_like(truth), torch.zeros_like(truth)), 0)
    assert scores.image_comparison == pytest.approx([1 / 3])  # a filler, of which nothing is known
    nothing = task.new_scores(1)
    nothing.add(torch.zeros_like(truth), OverlapTarget(truth, torch.full_like(truth, 7)), 0)
    assert nothing.summary().endswith("; nothing was found of heart, lung")
    assert not any(line.endswith(" ") for line in scores.table().splitlines())
    rows = [line.split() for line in scores.table().splitlines()]
    assert rows[1:] == [
        ["heart", "0.6667", "0.8000", "1.0000", "0.6667", "3"],
        ["lung", "0.0000", "0.0000", "n/a", "0.0000", "1"],
        ["bone", "n/a", "n/a", "n/a", "n/a", "0"],
        ["mean", "0.3333", "0.4000"],
    ]
    assert scores.brief() == {"mean_iou": 1 / 3, "mean_dice": pytest.approx(0.4)}
    boundary = {"boundary_iou": [0.25, 0, None], "mean_boundary_iou": 0.125}
    boundary |= {"hd95": [7.5, None, None], "mean_hd95": 6.5}
    rows = [line.split() for line in scores.table(boundary).splitlines()]
    assert rows[1] == ["heart", "0.6667", "0.8000", "0.2500", "7.5000", "1.0000", "0.6667", "3"]
    assert rows[4] == ["mean", "0.3333", "0.4000", "0.1250", "6.5000"]


def test_all_31_bits_are_kept():
    rng = np.random.default_rng(0)
    truth, unknown = rng.integers(0, 2**31, (2, 5, 6))
    for values, bits in zip(unpack_bits(pack_bits(truth, unknown & ~truth)), (truth, unknown & ~truth), strict=True):
        assert values.dtype == np.int32
        assert (values == bits).all()
    narrow = pack_bits(np.array([1], np.int32), np.array([2**30], np.int32))
    assert [values.tolist() for values in unpack_bits(narrow)] == [[1], [2**30]]


def test_a_target_is_packed_with_the_classes_of_which_nothing_is_known():
    packed = pack_target(OverlapTarget(np.array([1], np.int32), np.array([3], np.int32)))
    truth, unknown = unpack_bits(packed)
    assert packed.min() >= 0
    assert (truth.tolist(), unknown.tolist()) == ([1], [2**31 - 4])


def test_bits_are_moved_as_the_mask_of_each_would_be():
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(4, 1, 24, 32, generator=generator)
    truth = torch.randint(0, 2**31, (4, 24, 32), generator=generator).int()
    draws = [draw((1, i), strength="strong", seed=0, size=(24, 32), channels=1) for i in range(4)]
    numbers, zero = pack_draws(draws, 1), torch.zeros(1)
    targets = OverlapTarget(truth, torch.full_like(truth, 2**31 - 1))
    moved = augment(images, targets, draws, numbers, fill=zero, std=zero + 1)[1]
    assert moved.truth.dtype == torch.int64
    for bit in (0, 7, 29, 30):
        mask = ClassTarget((truth >> bit & 1).byte())
        expected = augment(images, mask, draws, numbers, fill=zero, std=zero + 1)[1].mask
        is_outside = expected == 255
        assert (moved.known[is_outside] == 0).all()
        assert (moved.known[~is_outside] == 2**31 - 1).all()
        differ = (moved.truth >> bit & 1 != expected) & ~is_outside
        assert differ.float().mean() < 1e-3  # ties between two pixels alone


def test_the_last_region_is_the_highest_bit():
    bits = torch.arange(1, 2**9)
    assert last_bits(bits, 9).tolist() == [1 << int(value).bit_length() - 1 for value in bits]
    assert last_bits(torch.tensor([0, 2**31 - 1]), 31).tolist() == [0, 2**30]


def test_labels_are_scored_beside_regions():
    task = Regions(tuple(region.name for region in BRATS), regions=BRATS)
    scores = task.new_scores(1)
    bits_of = torch.tensor([0, 1, 3, 7], dtype=torch.int32)  # of the labels 0 to 3
    truth, predicted_labels = torch.tensor([[[1, 2, 3, 3], [0, 2, 2, 0]]]), torch.tensor([[[1, 2, 2, 3], [0, 0, 1, 1]]])
    target = OverlapTarget(bits_of[truth], torch.full((1, 2, 4), 7, dtype=torch.int32))
    scores.add(bits_of[predicted_labels], target, 0)
    assert scores.values["iou"] == [5 / 7, 3 / 5, 1 / 2]
    assert scores.label_values["iou"] == [1 / 3, 1 / 4, 1 / 2]
    assert scores.comparison == pytest.approx((5 / 7 + 3 / 5 + 1 / 2) / 3)
    assert scores.record()["eval/label_mean_iou"] == pytest.approx((1 / 3 + 1 / 4 + 1 / 2) / 3)
    assert scores.record()["eval/label_mean_dice"] == pytest.approx((1 / 2 + 2 / 5 + 2 / 3) / 3)
    regions, labels = "mean IoU 0.6048, mean Dice 0.7500", "mean IoU 0.3611, mean Dice 0.5222"
    assert scores.summary() == f"{regions}; of the labels {labels}"
    assert [line.split()[0] for line in scores.table().splitlines() if "IoU" in line] == ["class", "written"]
    report = scores.report()
    assert task.scores_from_json(scores.to_json()).report() == report
    assert report["of_labels"]["labels"] == ["label 1", "label 2", "label 3"]
    # for pixels outside and inside of each region: how many were found outside and inside
    assert report["tables"] == [[[1, 1], [1, 5]], [[3, 0], [2, 3]], [[6, 0], [1, 1]]]
    assert report["of_labels"]["tables"] == [[[5, 2], [0, 1]], [[4, 1], [2, 1]], [[6, 0], [1, 1]]]


def test_a_region_without_those_around_it_is_read_as_its_label_will_be():
    task = Regions(tuple(region.name for region in BRATS), regions=BRATS)
    logits = torch.tensor([[-1.0, 2, -1, 1], [-1, -1, 3, -1], [-1, -1, -1, 2]])  # (regions, pixels)
    assert RegionDecoder(task).decode(logits).tolist() == [0, 1, 3, 7]
    apart = Regions(("a", "b"), regions=(Region("a", (1,)), Region("b", (2,))))
    assert RegionDecoder(apart).decode(torch.ones(1, 2, 3), dim=1).tolist() == [[2, 2, 2]]  # a pixel has one label


def test_a_region_is_written_and_scored_as_its_first_value():
    regions = (Region("whole", (3, 1, 2)), Region("core", (2, 1)))
    task = Regions(("whole", "core"), regions=regions)
    assert [region.label for region in regions] == ["label 3", "label 2"]
    assert task.bits_of_labels() == [1, 3]
    scores = task.new_scores(1)
    # of four pixels of the whole three are found; of the core, none of two
    truth = torch.tensor([[[1, 1, 3, 3, 0]]])
    prediction = torch.tensor([[[1, 1, 1, 0, 0]]])
    scores.add(prediction, OverlapTarget(truth, torch.full_like(truth, 3)), 0)
    assert scores.values["iou"] == [3 / 4, 0]
    assert scores.label_values["iou"] == [2 / 3, 0]  # as labels, two of three written pixels are right
    assert scores.image_comparison == pytest.approx([3 / 8])  # of the regions alone
    assert [line.split()[-1] for line in scores.table().splitlines()[-3:-1]] == ["2", "2"]  # true pixels
    assert scores.report()["of_labels"]["labels"] == ["label 3", "label 2"]


def test_a_model_knows_its_regions_and_damaged_ones_are_refused():
    task = Regions(tuple(region.name for region in BRATS), regions=BRATS, partners=(0, 2, 1), mirrors=False)
    config = UNetConfig(num_classes=3, task=task.to_config())
    restored = task_of_model(UNetConfig.from_json(config.to_json()))
    assert isinstance(restored, Regions)
    assert restored.regions == BRATS
    assert (restored.partners, restored.mirrors) == ((0, 2, 1), False)
    for damaged in ([["whole"]], [["whole", []], ["a", [1]], ["b", [2]]], None, [["whole", ["x"]]] * 3):
        with pytest.raises(ModelError, match=r"^config\.json: the task('s regions are damaged| has 3 regions)"):
            task_of_model(UNetConfig(num_classes=3, task={"name": "regions", "regions": damaged}))
    with pytest.raises(ModelError, match=r"^config\.json: the task has 1 regions, the model 3 outputs$"):
        task_of_model(UNetConfig(num_classes=3, task={"name": "regions", "regions": [["whole", [1]]]}))


def test_classes_without_names_are_numbered_from_one_where_they_overlap():
    config = UNetConfig(num_classes=2, task={"name": "overlapping"})
    assert task_of_model(config).names == ("1", "2")
    assert task_of_model(config).mirrors
    named_config = replace(config, preprocess=Preprocess(class_names=("a", "b")))
    assert task_of_model(named_config).names == ("a", "b")


def test_pixels_that_are_counted_in_parts_add_up(monkeypatch):
    _, targets = sample()
    prediction = torch.randint(0, 8, targets.truth.shape, generator=torch.Generator().manual_seed(1))
    whole = class_tables(prediction, targets.truth, targets.known, 3)
    monkeypatch.setattr(overlapping, "PIXELS_AT_ONCE", 77)
    assert torch.equal(class_tables(prediction, targets.truth, targets.known, 3), whole)


def test_what_is_unknown_is_counted_nowhere_though_it_is_set():
    found, truth = torch.tensor([[3, 0, 2, 1, 2]]), torch.tensor([[1, 3, 2, 0, 1]])
    known = torch.tensor([[2, 1, 3, 0, 2]])
    tables = class_tables(found, truth, known, 2)
    assert tables.tolist() == [[[1, 0], [1, 0]], [[0, 2], [0, 1]]]


def test_a_model_knows_which_classes_change_places_in_the_mirror_and_damaged_sides_are_refused():
    plain = Overlapping(NAMES)
    for task in (plain, replace(plain, partners=(0, 1, 2))):
        assert task.to_config() == {"name": "overlapping"}
    config = UNetConfig(num_classes=3, task=replace(plain, partners=(1, 0, 2), mirrors=False).to_config())
    assert config.task == {"name": "overlapping", "partners": [1, 0, 2], "mirrors": False}
    sided = task_of_model(config)
    assert (sided.partners, sided.mirrors) == ((1, 0, 2), False)
    for damage in ({"partners": [0, 0, 1]}, {"partners": [0, 1]}, {"partners": [0, "1", 2]}, {"mirrors": 1}):
        with pytest.raises(ModelError, match=r"^config\.json: the sides of the task .* are damaged; use another copy$"):
            task_of_model(UNetConfig(num_classes=3, task={"name": "overlapping", **damage}))
