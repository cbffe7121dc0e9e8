"""Which task a data set is for."""

from data_utils.config import DataConfig
from data_utils.sources.records import Records
from runtime.errors import SettingsError
from tasks.classes import Classes
from tasks.regions import Regions


def find_task(records: Records, config: DataConfig) -> str:
    """The task that is asked for, or that the targets can only mean; else classes."""
    if config.regions:
        if config.task not in (None, Regions.name):
            raise SettingsError(f"--regions is for --task {Regions.name}, and --task is {config.task}; leave one out")
        return Regions.name
    return config.task or records.task or Classes.name
