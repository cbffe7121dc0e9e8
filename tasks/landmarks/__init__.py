"""Landmarks: named points of an image."""

from tasks.kind import TaskKind
from tasks.landmarks.loss import Landmarks
from tasks.landmarks.reader import PointReader
from tasks.landmarks.show import LandmarkSection
from tasks.landmarks.write import PointFormat

KIND = TaskKind(Landmarks, PointReader, LandmarkSection, PointFormat)
