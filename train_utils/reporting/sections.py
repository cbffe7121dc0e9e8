"""The section of each task."""

from data_utils.analysis.dataset_info import DatasetInfo
from tasks.classes import Classes
from train_utils.reporting.classes import ClassSection
from train_utils.reporting.section import Section

SECTIONS: dict[str, type[Section]] = {Classes.name: ClassSection}


def new_section(info: DatasetInfo) -> Section:
    """What reports on a run with these data show of its task."""
    return SECTIONS[info.config.task](info.reader)
