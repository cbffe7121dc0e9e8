"""Landmarks: the position or the absence of each named point of an image, from one map for each point."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data_utils.config import LANDMARKS
from data_utils.point_states import ABSENCES, PRESENT, UNKNOWN
from data_utils.sources.points.files import FORMATS
from runtime.device import full_precision, upload_like, widest_float
from runtime.values import OneOf, Positive, from_json
from tasks.landmarks.decode import read_maps, read_points
from tasks.landmarks.scores import COLUMNS, LandmarkScores
from tasks.landmarks.target import PointTarget
from tasks.task import Task
from unet.config import UNetConfig

# If the network doubts a point, the presence term raises all its positions alike, also wrong ones: a smaller weight
# leaves fewer points far off.
PRESENCE_WEIGHT = 0.25


class PointSums(NamedTuple):
    """Sums over the pixels of each point's map, (B, K) each; they add up over the strips of an image.

    Args:
        weight: the exponentials of the logits.
        pull: the logits, each times the Gaussian around the point.
        mass: the Gaussian.
    """

    weight: Tensor
    pull: Tensor
    mass: Tensor


@dataclass(frozen=True)
class Landmarks(Task):
    """Cross-entropy over space, per present point, plus a quarter of the cross-entropy of presence, per known point.

    The map of a point holds a weight exp(logit) at each pixel; "nowhere" has one more weight. The probability of a
    pixel is its share of all weights, so presence needs no output of its own: it is the share of the whole map. The
    cross-entropy against a Gaussian at the point, or against "nowhere", is a sum of two terms: the position of present
    points and the presence of known points. The presence term has a smaller weight here, PRESENCE_WEIGHT.

    Args:
        names: the points' names.
        sigma: standard deviation of the Gaussians, in pixels of the network's input.
        nowhere: the logarithm of the weight of "nowhere". If it is the logarithm of the number of pixels, an untrained
            network predicts a presence of one half.
        partners: for each point, the index of the point that it becomes in the mirror image.
        mirrors: whether training mirrors images; predictions then average over the image and its mirror image.
        unit: the unit of errors: "px" of the image's file, or "mm".
        layout: the format of the points' files, one of `points.files.FORMATS`; predictions are written in it.
        space: the coordinates of the points in these files: "pixels", or mm in "LPS" or "RAS".
        always_there: the indices of points that are present in all training images. The network has never seen such a
            point absent, so predictions never call it absent.
        absent: the meaning of an empty cell in a table of points, one of ABSENCES.
    """

    names: tuple[str, ...]
    sigma: Positive = 2.0
    nowhere: float = 0.0
    partners: tuple[int, ...] = ()
    mirrors: bool = True
    unit: str = "px"
    layout: Annotated[str, OneOf(FORMATS)] = "long"
    space: str = "pixels"
    always_there: tuple[int, ...] = ()
    absent: Annotated[str, OneOf(ABSENCES)] = "unknown"

    name = LANDMARKS
    scores = LandmarkScores
    target = PointTarget
    terms = 2  # the positions and the presence
    measured_fields = ("sigma", "nowhere", "mirrors", "always_there")
    at_image_size = False
    reading = (
        "a map for each point, whose largest logit marks the position; the softmax over the map and one more logit,"
        " `nowhere` of the task in the config, says how likely the point is in the image, where it is none of the"
        " task's points that are `always_there`; a model whose task mirrors is"
        " best asked for the image and its mirror image, and the logits averaged, `partners` changed back"
    )

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.names

    @property
    def averages_mirrored(self) -> bool:
        return self.mirrors

    def unknown_target(self, shape: Sequence[int]) -> PointTarget:
        return PointTarget(
            points=np.zeros((self.outputs, len(shape))),
            states=np.full(self.outputs, UNKNOWN, np.int64),
            size=np.array(shape, np.int64),
            unit=np.ones(len(shape)),
        )

    def at_level(self, targets: PointTarget, factors: Sequence[int]) -> PointTarget:
        factor = upload_like(factors, targets.points)
        points = (targets.points - (factor - 1) / 2) / factor  # (factor - 1) / 2 is the center of the merged pixels
        size = targets.size // torch.tensor(factors)
        return replace(targets, points=points, size=size, unit=targets.unit * factor)

    def counts(self, targets: PointTarget) -> Tensor:
        """(2,): present points, known points."""
        dtype = targets.points.dtype
        present = (targets.states == PRESENT).sum(dtype=dtype)
        return torch.stack([present, (targets.states != UNKNOWN).sum(dtype=dtype)])

    def partial(self, logits: Tensor, targets: PointTarget) -> PointSums:
        """The sums of each point's map; a Gaussian is a product of a vector along each axis, so no map is computed."""
        logits = full_precision(logits)
        pull = logits
        mass = logits.new_ones(logits.shape[:2])
        for axis in reversed(range(targets.points.shape[-1])):
            positions = torch.arange(logits.shape[2 + axis], device=logits.device, dtype=targets.points.dtype)
            distances = (positions - targets.points[:, :, axis, None]) / self.sigma
            profile = (-0.5 * distances.square()).exp().to(logits.dtype)  # (B, K, side)
            other_axes = [1] * axis
            pull = (pull * profile.view(*profile.shape[:2], *other_axes, -1)).sum(dim=-1)
            mass = mass * profile.sum(dim=-1)
        # weights add up over strips; float64, which Apple's GPUs lack, holds the weights of logits up to 700
        wide = widest_float(logits.device)
        return PointSums(logits.flatten(2).logsumexp(dim=2).to(wide).exp(), pull, mass)

    def finish(self, partial: tuple[Tensor, ...], targets: PointTarget) -> Tensor:
        """(2,): the sum of the position terms, and the sum of the presence terms times PRESENCE_WEIGHT."""
        sums = PointSums(*partial)
        is_present = (targets.states == PRESENT).to(sums.pull.dtype)
        is_known = (targets.states != UNKNOWN).to(sums.pull.dtype)
        log_weight = sums.weight.clamp_min(torch.finfo(sums.weight.dtype).tiny).log().to(sums.pull.dtype)
        place_loss = log_weight - sums.pull / sums.mass.clamp_min(torch.finfo(sums.mass.dtype).tiny)
        odds = log_weight - self.nowhere
        presence_loss = is_present * F.softplus(-odds) + (is_known - is_present) * F.softplus(odds)
        return torch.stack([(is_present * place_loss).sum(), PRESENCE_WEIGHT * presence_loss.sum()])

    def new_scores(self, images: int, device: torch.device | str = "cpu") -> LandmarkScores:
        sums = torch.zeros(1, dtype=torch.int64, device=device)
        by_image = torch.zeros(images, self.outputs, COLUMNS, dtype=widest_float(torch.device(device)), device=device)
        return LandmarkScores(self.names, self.unit, sums, by_image)

    def decode(self, logits: Tensor) -> Tensor:
        """The maps themselves: a landmark is read from its whole map."""
        return full_precision(logits)

    def labels_and_objects(self, decoded: np.ndarray) -> tuple[np.ndarray, Sequence[Any]]:
        """Points (K, n + 2): the position of each as shares of the sides, 0 to 1; its presence; its confidence.

        The position is the top of a parabola fitted to the logits around the highest pixel: the logarithm of a Gaussian
        is one. Presence is the probability of the map as a whole against "nowhere", 1 for a point that no training
        image lacked; confidence is the share of the map's weight that lies around the position.
        """
        return read_points(decoded, self), ()

    def labels_of_variants(self, decoded: Tensor) -> list[Tensor]:
        return [read_maps(decoded[0], self)[None]]

    def probabilities(self, logits: Tensor) -> Tensor:
        return (logits - self.nowhere).sigmoid()  # the point is at a pixel, and not nowhere

    def logits_from_probabilities(self, probabilities: Tensor) -> Tensor:
        return probabilities.logit(eps=torch.finfo(probabilities.dtype).eps) + self.nowhere

    def mean_of_views(self, views: Sequence[Tensor]) -> Tensor:
        # the geometric mean of the maps: the arithmetic one would follow the map of the highest weight alone
        return torch.stack(views).mean(dim=0)

    def to_config(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}

    def ensemble_task(self, others: Sequence[Task]) -> "Landmarks":
        # the maps of the networks are averaged, so the weights of "nowhere" are averaged too
        levels = [self.nowhere]
        mirrors = self.mirrors
        always_there = set(self.always_there)
        for task in others:
            assert isinstance(task, Landmarks)
            levels.append(task.nowhere)
            mirrors = mirrors and task.mirrors
            always_there &= set(task.always_there)
        nowhere = sum(levels) / len(levels)
        return replace(self, nowhere=nowhere, mirrors=mirrors, always_there=tuple(sorted(always_there)))

    @classmethod
    def from_config(cls, config: UNetConfig) -> "Landmarks":
        values = dict(config.task or {})
        values.pop("name")
        task = from_json(cls, values, "the task")
        points = range(task.outputs)
        if sorted(task.partners) != list(points):
            raise ValueError(f"partners {task.partners} of {task.outputs} points")
        if not set(task.always_there) <= set(points):
            raise ValueError(f"always_there {task.always_there} of {task.outputs} points")
        return task
