"""One table as plain text, Markdown and HTML."""

from html.parser import HTMLParser

import pytest

from tasks.tables import Column, Table, as_html, as_markdown, as_text

LONG_NAME = "a class of a long name"
TABLE = Table(
    "Classes",
    "class",
    (Column("iou", "IoU"), Column("pixels", "pixels", ","), Column("kind", "kind", "")),
    [(LONG_NAME, {"iou": 0.5, "pixels": 1040, "kind": "<b>|"}), ("b", {"iou": None, "pixels": 0, "kind": ""})],
    ("mean", {"iou": 0.5}),
    note="c & d are absent.",
)
CELLS = [
    ["class", "IoU", "pixels", "kind"],
    [LONG_NAME, "0.5000", "1,040", "<b>|"],
    ["b", "n/a", "0", ""],
    ["mean", "0.5000", "", ""],
]


def test_text_has_columns_as_wide_as_their_widest_cell():
    *lines, note = as_text(TABLE).splitlines()
    assert [" ".join(line.split()) for line in lines] == [" ".join(filter(None, row)) for row in CELLS]
    ends = [line.index(cell) + len(cell) for line, cell in zip(lines, ("IoU", "0.5000", "n/a", "0.5000"), strict=True)]
    assert len(set(ends)) == 1
    assert not any(line.endswith(" ") for line in lines)
    assert note == TABLE.note


def test_markdown_has_the_cells_without_markup():
    lines = as_markdown(TABLE).splitlines()
    assert lines[0] == "| class | IoU | pixels | kind |"
    assert lines[1] == "| --- | ---: | ---: | ---: |"
    assert lines[2] == f"| {LONG_NAME} | 0.5000 | 1,040 | &lt;b>\\| |"
    assert lines[4] == "| mean | 0.5000 |  |  |"
    assert lines[-1] == "c &amp; d are absent."


class Cells(HTMLParser):
    """The cells of each row of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()


@pytest.mark.parametrize("colors", [{}, {"b": "rgb(1, 2, 3)"}])
def test_html_has_the_cells_with_the_colors_of_names(colors):
    page = as_html(TABLE._replace(note=""), colors)
    assert Cells(page).rows == CELLS
    assert page.count("rgb(1, 2, 3)") == len(colors)
    assert "<b>" not in page
    assert "<p>c &amp; d are absent.</p>" in as_html(TABLE, colors)
    _, foot = page.split("<tfoot>")
    assert Cells(foot).rows == CELLS[-1:]
    assert "<tfoot>" not in as_html(TABLE._replace(last=None), colors)
