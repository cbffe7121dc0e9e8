"""Which images are predicted together, and by which process."""

from pathlib import Path

import pytest
from support.prediction import image_job, volume_job

from inference.batches import group_jobs, process_share


def test_the_largest_batch_goes_to_the_process_with_the_fewest_pixels():
    sizes = {"a": (1, 10), "b": (1, 2), "c": (1, 9), "d": (1, 7), "e": (1, 4)}
    jobs = {name: image_job(Path(), name, size) for name, size in sizes.items()}
    batches = [[jobs["e"]], [jobs["a"]], [jobs["b"], jobs["d"]], [jobs["c"]]]
    assert process_share(batches, 0, 2) == [[jobs["a"]], [jobs["e"]]]
    assert process_share(batches, 1, 2) == [[jobs["b"], jobs["d"]], [jobs["c"]]]
    assert process_share(batches, 1, 3) == [[jobs["b"], jobs["d"]], [jobs["e"]]]


def test_a_batch_is_full_when_its_shares_are_one():
    jobs = [image_job(Path(), str(number), (1, size)) for number, size in enumerate((2, 3, 2, 2, 9, 3))]
    jobs.append(image_job(Path(), "unreadable", None))

    def batch_of(size: tuple[int, ...]) -> tuple[int, int] | None:
        return None if size[1] == 9 else (size[1], size[1])

    batches = group_jobs(jobs, batch_of)
    assert [[jobs.index(member) for member in batch] for batch in batches] == [[0, 2], [1, 5], [3], [4], [6]]


@pytest.mark.parametrize(
    ("counts", "lengths"),
    [((2, 3, 6, 2, 3), [3, 2]), ((11,) * 12, [11, 1])],
    ids=["a half, a third and a sixth", "elevenths"],
)
def test_a_batch_adds_up_the_shares_of_images_that_take_more_or_less_of_it(counts, lengths):
    jobs = [image_job(Path(), str(number), (1, count)) for number, count in enumerate(counts)]
    batches = group_jobs(jobs, lambda size: ("tiles", size[1]))
    assert [len(batch) for batch in batches] == lengths


def test_a_volume_is_computed_alone(tmp_path):
    jobs = [volume_job(tmp_path, None) for _ in range(2)]
    assert group_jobs(jobs, lambda size: (size, 8)) == [[job] for job in jobs]
