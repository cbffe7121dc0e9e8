"""Objects: the pixels of each, from classes and depths."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from runtime.errors import SettingsError
from tasks.classes.decode import class_entropy, most_likely
from tasks.decoder import Decoder
from tasks.object_labels import label_numbers
from tasks.objects.answers import LEVELS, pack_answers
from tasks.objects.finder import DetectedObject, find_objects
from tasks.objects.loss import Objects
from tasks.task import Task


class ObjectDecoder(Decoder[Objects]):
    """Labels of objects, as `pack_labels` makes them; they are found in the answers of all pixels."""

    reading = (
        "all logits but the last are those of classes; the sigmoid of the last is the depth within an object, from 0 at"
        " its border to 1, and predict.py grows each object from a peak of it"
    )

    def decode(self, logits: Tensor, dim: int = 0) -> Tensor:
        """The answer of each pixel: class, depth and certainty of not being background, as one number."""
        classes = logits.shape[dim] - 1
        class_logits = logits.narrow(dim, 0, classes)
        most_likely_class = most_likely(class_logits, dim).int()
        depth = (logits.select(dim, classes).sigmoid() * LEVELS).round().int()
        certainty = ((1 - class_logits.softmax(dim).select(dim, 0)) * LEVELS).round().int()
        answers = pack_answers(most_likely_class, depth, certainty)
        return answers.masked_fill(most_likely_class == 0, 0)

    def finish(self, answers: np.ndarray) -> tuple[np.ndarray, list[DetectedObject]]:
        return answers, find_objects(answers, self.task)

    def finish_on_device(self, answers: Tensor) -> Tensor:
        labels, _ = self.finish(answers[0].cpu().numpy())
        return torch.from_numpy(labels).to(answers.device)[None]

    def probabilities(self, logits: Tensor, dim: int = 0) -> Tensor:
        """The probabilities of the classes, and then the depth."""
        classes = logits.shape[dim] - 1
        class_probabilities = logits.narrow(dim, 0, classes).softmax(dim)
        return torch.cat([class_probabilities, logits.narrow(dim, classes, 1).sigmoid()], dim)

    def entropy(self, logits: Tensor) -> Tensor:
        """The entropy of the classes."""
        return class_entropy(logits[:-1])

    def logits_from_probabilities(self, probabilities: Tensor, dim: int = 0) -> Tensor:
        classes = probabilities.shape[dim] - 1
        limits = torch.finfo(probabilities.dtype)
        class_logits = probabilities.narrow(dim, 0, classes).clamp_min(limits.tiny).log()
        depth = probabilities.narrow(dim, classes, 1).logit(eps=limits.eps)
        return torch.cat([class_logits, depth], dim)

    def mask(self, labels: np.ndarray) -> np.ndarray:
        return label_numbers(labels)


def choose_objects(task: Task, smallest: int | None, *, drops_border: bool) -> Task:
    """The task with other rules for objects that are left out. Raises SettingsError if the task has no objects.

    Args:
        smallest: the least number of pixels of an object; None keeps the number from the training data.
        drops_border: whether objects that touch the border of the image are left out.
    """
    if smallest is None and not drops_border:
        return task
    if not isinstance(task, Objects):
        flag = "--drop-border" if drops_border else "--min-size"
        raise SettingsError(f"{flag}: is for models of objects, and this is one of {task.name}; leave the flag out")
    if smallest is None:
        smallest = task.smallest
    return replace(task, smallest=smallest, drops_border=drops_border)
