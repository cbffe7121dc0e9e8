"""What a reader sees of a report and of a model card: the cells of its tables, the line that predicts, the tags."""

import re
from html import unescape

from huggingface_hub import ModelCard

from tasks.task import Scores
from train_utils.evaluation import Evaluation
from train_utils.reporting.model_card import model_card
from train_utils.reporting.section import Section
from train_utils.settings.record import RunSettings


def html_rows(html: str) -> list[list[str]]:
    """The cells of each row of all tables of a page."""
    rows = re.findall(r"<tr>(.*?)</tr>", html, flags=re.DOTALL)
    return [[unescape(re.sub(r"<[^>]+>", "", cell)) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)] for row in rows]


def markdown_rows(markdown: str) -> list[list[str]]:
    """The cells of each row of all tables of a text in markdown."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines() if line[:1] == "|"]


def card_of(section: Section, scores: Scores) -> str:
    """The model card of a run that has these scores."""
    record = {
        "flags": {"dataset": "cells"},
        "identity": {"dims": 2},
        "profile": {"processes": 1, "mixed_precision": "no"},
        "total_steps": 40,
        "run": {"torch": "2", "accelerate": "1"},
    }
    return model_card(RunSettings.from_json(record), Evaluation(30, None, scores), section)


def use_of(section: Section, scores: Scores) -> str:
    """The line of a model card that predicts."""
    return card_of(section, scores).partition('this model")\n')[2].partition("\n```")[0]


def tags_of(section: Section, scores: Scores) -> list[str]:
    """The tags by which the Hub lists a model."""
    return ModelCard(card_of(section, scores)).data.tags
