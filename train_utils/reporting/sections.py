"""The section of each task."""

from data_utils.analysis.dataset_info import DatasetInfo
from tasks.classes import Classes
from tasks.landmarks import Landmarks
from tasks.objects import Objects
from tasks.overlapping import Overlapping
from tasks.regions import Regions
from train_utils.reporting.classes import ClassSection
from train_utils.reporting.landmarks import LandmarkSection
from train_utils.reporting.objects import ObjectSection
from train_utils.reporting.overlapping import OverlapSection, RegionSection
from train_utils.reporting.section import Section

SECTIONS: dict[str, type[Section]] = {
    Classes.name: ClassSection,
    Landmarks.name: LandmarkSection,
    Objects.name: ObjectSection,
    Overlapping.name: OverlapSection,
    Regions.name: RegionSection,
}


def new_section(info: DatasetInfo) -> Section:
    """The section of a run's task, for reports on these data."""
    assert info.config.task is not None
    return SECTIONS[info.config.task](info.reader)
