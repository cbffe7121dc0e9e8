"""Which classes of a task an image is labeled for, from the names that label files hold."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from data_utils.class_names import NamedClasses, no_such_class
from data_utils.mask_values import value_text
from data_utils.sources.records import LabelSet
from runtime.errors import DataError
from unet.config import MaskValue


@dataclass(frozen=True)
class LabelSets:
    """The different sets of classes that the images of a data set are labeled for.

    Args:
        flags: for each set, whether an image is labeled for each class; the first set has all classes.
        numbers: set of names -> its index in `flags`.
        location: the first place that lists a set without some of the classes; empty if there is none.
    """

    flags: tuple[tuple[bool, ...], ...]
    numbers: Mapping[LabelSet, int]
    location: str = ""

    @classmethod
    def from_names(
        cls,
        place_by_set: Mapping[LabelSet, str],
        names: Sequence[str],
        values: Sequence[Sequence[MaskValue]],
        file_classes: NamedClasses,
        background: int | None = None,
    ) -> "LabelSets":
        """The label sets of a task, from the names in label files.

        A class is known by its name, by its mask values, and by the names that the data set gives to these. If a class
        has several values, an image is labeled for it if it is labeled for each value.

        Args:
            place_by_set: the sets, each with the place that lists it.
            names: the names of the classes.
            values: the mask values of each class.
            file_classes: mask value and name of the classes that the data set names.
            background: the index of the class of all other pixels, if there is one.

        Raises DataError, with the place, for names of no class.
        """
        words: dict[MaskValue, set[str]] = defaultdict(set)
        for value in chain.from_iterable(values):
            words[value].add(value_text(value))
        for value, name in file_classes:
            words[value].add(name)
        known_names = {*names}.union(*words.values())
        flags = [(True,) * len(names)]
        numbers: dict[LabelSet, int] = {}
        for labeled_for, location in place_by_set.items():
            for name in sorted({*labeled_for} - known_names):
                raise DataError(f"{location}: {no_such_class(name, names, known_names)}")
            labeled = []
            for name, class_values in zip(names, values, strict=True):
                is_labeled = [not words[value].isdisjoint(labeled_for) for value in class_values]
                labeled.append(name in labeled_for or all(is_labeled))
            set_flags = _with_background(labeled, background)
            if set_flags not in flags:
                flags.append(set_flags)
            numbers[labeled_for] = flags.index(set_flags)
        label_files = [location for labeled_for, location in place_by_set.items() if numbers[labeled_for] > 0]
        return cls(tuple(flags), numbers, label_files[0] if label_files else "")

    @property
    def are_complete(self) -> bool:
        """Whether every image is labeled for all classes."""
        return len(self.flags) == 1

    def describe(self) -> str:
        """A half-sentence to add to a line on the classes."""
        return f", some images labeled for some of these only ({self.location})"

    def number(self, labeled_for: LabelSet | None) -> int:
        """The index of the set of an image that is labeled for classes of these names; None stands for all classes."""
        return 0 if labeled_for is None else self.numbers[labeled_for]

    def class_pixels(
        self,
        pixels: Mapping[LabelSet | None, dict[MaskValue, int]],
        count: Callable[[dict[MaskValue, int]], Sequence[int]],
    ) -> tuple[int, ...]:
        """Pixels of each class in the images that are labeled for it.

        Args:
            pixels: for each set, the pixels of each mask value in its images.
            count: returns the pixels of each class, given the pixels of each value.
        """
        counts = np.zeros(len(self.flags[0]), np.int64)
        for labeled_for, set_pixels in pixels.items():
            counts += np.where(self.flags_of(labeled_for), count(set_pixels), 0)
        return tuple(counts.tolist())

    def flags_of(self, labeled_for: LabelSet | None) -> tuple[bool, ...]:
        """For each class, whether an image with this label set is labeled for it."""
        return self.flags[self.number(labeled_for)]


def _with_background(labeled: Sequence[bool], background: int | None) -> tuple[bool, ...]:
    """Flags of classes; the background's is set if all other classes are labeled, whatever a file lists."""
    if background is None:
        return tuple(labeled)
    flags = list(labeled)
    flags[background] = True
    flags[background] = all(flags)
    return tuple(flags)
