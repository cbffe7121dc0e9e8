"""Targets: what the network is to learn of each image, from files to arrays."""

from data_utils.targets.classes import ClassReader
from data_utils.targets.points import PointReader
from data_utils.targets.reader import TargetReader
from tasks.classes import Classes
from tasks.landmarks import Landmarks

TARGETS: dict[str, type[TargetReader]] = {Classes.name: ClassReader, Landmarks.name: PointReader}
