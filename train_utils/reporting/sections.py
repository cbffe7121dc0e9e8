"""The section of each task."""

from data_utils.analysis.dataset_info import DatasetInfo
from tasks.classes import Classes
from tasks.landmarks import Landmarks
from train_utils.reporting.classes import ClassSection
from train_utils.reporting.landmarks import LandmarkSection
from train_utils.reporting.section import Section

SECTIONS: dict[str, type[Section]] = {Classes.name: ClassSection, Landmarks.name: LandmarkSection}


def new_section(info: DatasetInfo) -> Section:
    """The section of a run's task: what reports on these data show of it."""
    assert info.config.task is not None, "it was found"
    return SECTIONS[info.config.task](info.reader)
