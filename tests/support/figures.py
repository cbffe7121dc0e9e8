"""Figures that nobody draws: matplotlib takes most of the time of a tiny run, and few tests look at what it drew."""

import base64
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import IO
from unittest import mock

SVG = '<svg xmlns="http://www.w3.org/2000/svg"></svg>'
# one white pixel
PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg==")


class Undrawn:
    """An object whose attributes, calls, items and only element are itself."""

    def __getattr__(self, name: str) -> "Undrawn":
        return self

    def __call__(self, *_: object, **__: object) -> "Undrawn":
        return self

    def __getitem__(self, _: object) -> "Undrawn":
        return self

    def __iter__(self) -> Iterator["Undrawn"]:
        yield self


class UndrawnFigure(Undrawn):
    """Stands in for matplotlib's Figure."""

    def __init__(self, **_: object) -> None:
        pass

    def savefig(self, file: IO, format: str, **_: object) -> None:
        file.write(SVG if format == "svg" else PNG)


def without_figures() -> AbstractContextManager:
    """Within, no run draws the figures of its report."""
    return mock.patch("matplotlib.figure.Figure", UndrawnFigure)
