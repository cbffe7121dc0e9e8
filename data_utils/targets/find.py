"""Which task a data set is for."""

from dataclasses import replace

from data_utils.config import DataConfig
from data_utils.sources.records import Records


def find_task(config: DataConfig, records: Records) -> DataConfig:
    """The settings with the task of --task, else with the one that the files of the records call for."""
    return replace(config, task=config.task or records.task)
