"""Several processes predict one input together: the files are those of one process, and errors end nothing else."""

import filecmp
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from PIL import Image
from support.forks import call_in_processes
from support.launches import launch
from support.volumes import case, write_nifti

from data_utils.image_io.formats import VolumeFile
from inference import Predictor
from inference.outputs.jobs import ImageJob, VolumeJob
from inference.tiling import Tiling, stream_logits
from inference.tiling.sharing import SharedRows
from inference.work import Work, divide_work
from runtime.errors import DataError
from runtime.mesh import Mesh
from tasks.landmarks import Landmarks
from unet import Preprocess, UNetConfig
from unet.model import UNet

SIZE = (60, 20)
TILING = Tiling((16, 16), (8, 8), (4, 4), exact=False)


def forward(batch: torch.Tensor) -> torch.Tensor:
    """Two channels of logits, in the layout in which networks compute them."""
    pixels = batch.float()
    return torch.cat([pixels, pixels.square()], dim=1).contiguous(memory_format=torch.channels_last)


def strips_of(row_forward_for=None) -> torch.Tensor:
    pixels = torch.arange(1200).view(1, *SIZE).to(torch.uint8)  # as those of pictures; their logits are float32
    strips = stream_logits(forward, lambda start, stop: pixels[:, start:stop], SIZE, TILING, 2**10, row_forward_for)
    return torch.cat(list(strips), dim=1)


def predict_together(rank: int, processes: int, folder) -> None:
    """Three inputs: one that goes well, one that the leader gives up, and one that another process cannot compute."""
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=processes)
    shared = SharedRows(Mesh.from_process(rank, processes, processes), 2, torch.device("cpu"))
    if rank == 0:
        with shared.lead(0):
            assert torch.equal(strips_of(shared.row_forward_for), strips_of())
        with pytest.raises(OSError, match="disk full"), shared.lead(1):
            raise OSError("disk full")
        with pytest.raises(DataError, match=r"^café\.nii is cut$"), shared.lead(2):
            strips_of(shared.row_forward_for)
        shared.end()
    else:
        numbers = []
        for number in shared.inputs():
            numbers.append(number)
            with shared.follow((DataError,)):
                if number == 2 and rank == 1:
                    raise DataError("caf\u00e9.nii is cut")
                strips_of(shared.row_forward_for)
        assert numbers == [0, 1, 2]
    dist.destroy_process_group()


def test_rows_are_those_of_one_process_and_an_error_ends_one_input(tmp_path):
    call_in_processes(predict_together, 3, tmp_path)


@pytest.fixture
def messages(monkeypatch) -> list[tuple[int, list[int]]]:
    """What is sent to which process; what is received is taken from its end, by the number of the sender."""
    messages = []
    monkeypatch.setattr("runtime.mesh._process_group", lambda size: f"group of {size}")

    def send(values: torch.Tensor, rank: int, group: str) -> None:
        assert group == "group of 2"
        messages.append((rank, values.tolist()))

    def receive(values: torch.Tensor, rank: int, group: str) -> None:
        assert rank == 4
        assert group == "group of 2"
        values.copy_(torch.tensor(inbox.pop()))

    inbox = [[0], [1], [3]]
    monkeypatch.setattr(dist, "send", send)
    monkeypatch.setattr(dist, "recv", receive)
    return messages


def test_messages_go_to_the_processes_of_the_own_group(messages):
    leader = SharedRows(Mesh(2, 0, 2), 2, torch.device("cpu"))
    with leader.lead(3):
        pass
    leader.end()
    assert messages == [(5, [3]), (5, [0]), (5, [-1])]
    messages.clear()
    with pytest.raises(OSError, match="disk full"), leader.lead(4):
        raise OSError("disk full")
    assert messages == [(5, [4]), (5, [0])]
    messages.clear()
    follower = SharedRows(Mesh(2, 1, 2), 2, torch.device("cpu"))
    assert next(follower.inputs()) == 3
    with follower.follow((DataError,)):
        raise DataError("caf\u00e9")
    assert messages == [(4, [5]), (4, list(b"caf\xc3\xa9"))]


def test_an_error_without_a_text_is_told_by_its_type(messages):
    follower = SharedRows(Mesh(2, 1, 2), 2, torch.device("cpu"))
    assert next(follower.inputs()) == 3
    with follower.follow((MemoryError,)):
        raise MemoryError
    assert messages == [(4, [11]), (4, list(b"MemoryError"))]


def test_a_process_computes_no_row_of_another_process(monkeypatch):
    monkeypatch.setattr("runtime.mesh._process_group", lambda size: None)
    batches = []
    follower = SharedRows(Mesh(3, 1, 0), 2, torch.device("cpu"))
    logits = follower.row_forward_for(batches.append, row=2)(torch.ones(4, 1, 5, 6))
    assert batches == []
    assert logits.shape == (4, 2, 5, 6)


def test_logits_are_computed_before_they_are_asked_for(monkeypatch):
    monkeypatch.setattr("runtime.mesh._process_group", lambda size: None)
    events = []

    def receive(values: torch.Tensor, rank: int, group: None) -> None:
        events.append("asked")
        values.fill_(1)

    monkeypatch.setattr(dist, "recv", receive)
    monkeypatch.setattr(dist, "send", lambda values, rank, group: events.append(tuple(values.shape)))
    follower = SharedRows(Mesh(2, 1, 0), 2, torch.device("cpu"))
    row_forward = follower.row_forward_for(lambda batch: events.append("computed") or forward(batch), row=1)
    row_forward(torch.ones(4, 1, 5, 6))
    assert events == ["computed", "asked", (1,), (4, 2, 5, 6)]


def test_a_group_is_made_by_all_its_processes_before_the_first_input(monkeypatch):
    groups = []
    monkeypatch.setattr("runtime.mesh._process_group", groups.append)
    SharedRows(Mesh(), 2, torch.device("cpu"))
    assert groups == []
    SharedRows(Mesh(2, 1, 0), 2, torch.device("cpu"))
    assert groups == [2]


@pytest.mark.parametrize(
    ("of_tiles", "of_logits"),
    [(torch.float64, torch.float64), (torch.float16, torch.float32), (torch.uint8, torch.float32)],
)
def test_logits_of_another_process_are_as_precise_as_those_of_its_own(monkeypatch, of_tiles, of_logits):
    monkeypatch.setattr("runtime.mesh._process_group", lambda size: None)
    asked, received = [], []
    monkeypatch.setattr(dist, "send", lambda values, rank, group: asked.append((values.tolist(), rank)))
    monkeypatch.setattr(dist, "recv", lambda values, rank, group: received.append((values.dtype, rank)))
    rows = SharedRows(Mesh(3, 0, 1), 2, torch.device("cpu"))
    assert rows.row_forward_for(forward, 3) is forward
    logits = rows.row_forward_for(forward, 5)(torch.zeros(4, 1, 6, 7, dtype=of_tiles))
    assert logits.shape == (4, 2, 6, 7)
    assert logits.dtype == of_logits
    assert asked == [([1], 5)]
    assert received == [(torch.int64, 5), (of_logits, 5)]


def test_inputs_that_are_cut_are_dealt_to_groups_and_others_to_processes():
    predictor = Predictor(UNet(UNetConfig(1, 2, base_channels=1, depth=1, norm="group")), tile_size=256)
    sizes = [(6000, 6000), (4000, 4000), (3000, 3000), (3100, 3000), (90, 80), (90, 80), (90, 80), (200, 200)]
    jobs = []
    for number, size in enumerate(sizes):
        jobs.append(ImageJob(image=Path(f"{number}.png"), size=size, output=Path(str(number))))
    jobs.append(ImageJob(image=Path("damaged.png"), size=None, output=Path("damaged")))
    finished = {jobs[3]}  # it is scored only
    work = Work(jobs, [[job] for job in jobs], finished)
    together = []
    alone = []
    for rank in range(6):
        of_group, own = divide_work(work, predictor, Mesh.from_process(rank, 6, 2), 6)
        together.append([job for batch in of_group for job in batch])
        alone.append([job for batch in own for job in batch])
    assert together == [jobs[:1], jobs[:1], jobs[1:2], jobs[1:2], jobs[2:3], jobs[2:3]]
    assert sorted(jobs.index(job) for own in alone for job in own) == [3, 4, 5, 6, 7, 8]
    assert max(map(len, alone)) < 6
    assert divide_work(work, predictor, Mesh(), 1)[0] == []  # a process alone shares nothing


@pytest.mark.parametrize(("size", "is_shared"), [((40, 20, 20), True), ((16, 16, 16), False)], ids=["cut", "whole"])
def test_volume_is_shared_where_it_is_cut(size, is_shared):
    volumes = Predictor(UNet(UNetConfig(1, 2, base_channels=1, depth=1, dims=3)), tile_size=16)
    assert volumes.is_shareable(size, (1.0, 1.0, 1.0)) is is_shared


def test_volume_that_is_predicted_slice_by_slice_is_not_shared():
    slices = Predictor(UNet(UNetConfig(1, 2, base_channels=1, depth=1)), tile_size=16)
    assert not slices.is_shareable((40, 20, 20), (1.0, 1.0, 1.0))


def test_image_that_is_read_whole_is_not_shared():
    images = Predictor(UNet(UNetConfig(1, 2, base_channels=1, depth=1)), tile_size=16)
    assert not images.is_shareable((40, 20))


def test_volume_is_shared_where_every_network_cuts_it():
    coarse = UNetConfig(1, 2, base_channels=1, depth=1, dims=3, preprocess=Preprocess(spacing=(4.0, 4.0, 4.0)))
    fine = UNetConfig(1, 2, base_channels=1, depth=1, dims=3, preprocess=Preprocess(spacing=(1.0, 1.0, 1.0)))
    both = Predictor(UNet(fine), ensemble=[UNet(coarse)], tile_size=16)
    assert not both.is_shareable((40, 20, 20), (1.0, 1.0, 1.0))  # the second one computes it whole
    assert both.is_shareable((160, 80, 80), (1.0, 1.0, 1.0))


def test_a_volume_is_shared_where_it_is_cut_at_the_spacing_of_the_network():
    fine = UNetConfig(1, 2, base_channels=1, depth=1, dims=3, preprocess=Preprocess(spacing=(1.0, 1.0, 1.0)))
    predictor = Predictor(UNet(fine), tile_size=16)
    volume = VolumeFile(("v.nii",))
    job = VolumeJob(
        image=Path("v.nii"), size=(12, 12, 12), output=Path("out/v"), volume=volume, spacing=(4.0, 4.0, 4.0)
    )
    assert divide_work(Work([job], [[job]], set()), predictor, Mesh.from_process(0, 2, 2), 2) == ([[job]], [])


def check_equal_files(folder: Path, other: Path) -> None:
    """Two folders have the same files."""
    names = sorted(file.name for file in folder.iterdir())
    assert names == sorted(file.name for file in other.iterdir())
    match, _, _ = filecmp.cmpfiles(folder, other, names, shallow=False)
    assert sorted(match) == names


@pytest.fixture(scope="module")
def shared_volumes(tmp_path_factory) -> dict[str, tuple[Path, subprocess.CompletedProcess]]:
    """The output folder for three volumes, one of which is cut off, and the result: of one process and of two."""
    folder = tmp_path_factory.mktemp("volumes")
    torch.manual_seed(0)
    config = UNetConfig(1, 3, base_channels=2, depth=2, dims=3)
    UNet(config).save_pretrained(folder / "model")
    scans = folder / "scans"
    for seed in range(2):
        write_nifti(scans / f"scan_{seed}.nii.gz", case(seed, (20, 18, 40))[0])
    whole = (scans / "scan_0.nii.gz").read_bytes()
    (scans / "scan_2.nii.gz").write_bytes(whole[: len(whole) // 2])
    script = ["predict.py", "--model", folder / "model", "--input", scans, "--tile-size", "16", "--probabilities"]
    alone = launch(*script, "--output", folder / "alone")
    shared = [*script, "--output", folder / "together", "--processes-per-volume", "2"]
    together = launch(*shared, profile="multi_cpu", options=["--num_processes", "2"])
    return {"alone": (folder / "alone", alone), "together": (folder / "together", together)}


@pytest.mark.parametrize("processes", ["alone", "together"])
def test_volume_that_cannot_be_read_is_named_once(shared_volumes, processes):
    _, result = shared_volumes[processes]
    assert result.returncode == 1, result.stderr
    assert "2 of 3 masks" in result.stdout, result.stderr
    assert result.stderr.count("failed:") == 1
    assert "scan_2.nii.gz" in result.stderr


def test_volumes_that_two_processes_share_are_byte_for_byte_those_of_one(shared_volumes):
    alone, _ = shared_volumes["alone"]
    together, _ = shared_volumes["together"]
    assert len(list(alone.iterdir())) == 5
    check_equal_files(alone, together)


@pytest.mark.slow
def test_a_large_image_that_three_processes_share_is_that_of_one(tmp_path):
    torch.manual_seed(0)
    UNet(UNetConfig(3, 4, base_channels=2, depth=2)).save_pretrained(tmp_path / "model")
    pixels = np.random.default_rng(0).integers(0, 255, (3000, 3100, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "scan.png")
    script = ["predict.py", "--model", tmp_path / "model", "--input", tmp_path / "scan.png", "--tile-size", "256"]
    assert launch(*script, "--output", tmp_path / "alone").returncode == 0
    options = ["--num_processes", "3"]
    flags = ["--output", tmp_path / "together", "--processes-per-volume", "3"]
    assert launch(*script, *flags, profile="multi_cpu", options=options).returncode == 0
    assert (tmp_path / "alone/scan.png").read_bytes() == (tmp_path / "together/scan.png").read_bytes()


@pytest.mark.slow
def test_two_processes_find_the_points_of_a_volume_that_one_finds(tmp_path):
    """Also those of its mirror image."""
    torch.manual_seed(0)
    task = Landmarks(("left", "right", "tail"), partners=(1, 0, 2), unit="mm", layout="nnlandmark")
    UNet(UNetConfig(1, 3, base_channels=2, depth=2, dims=3, task=task.to_config())).save_pretrained(tmp_path / "model")
    write_nifti(tmp_path / "scans" / "scan.nii.gz", case(0, (20, 18, 40))[0])
    script = ["predict.py", "--model", tmp_path / "model", "--input", tmp_path / "scans", "--tile-size", "16"]
    alone = launch(*script, "--probabilities", "--output", tmp_path / "alone")
    assert alone.returncode == 0, alone.stderr
    flags = ["--probabilities", "--output", tmp_path / "together", "--processes-per-volume", "2"]
    together = launch(*script, *flags, profile="multi_cpu", options=["--num_processes", "2"])
    assert together.returncode == 0, together.stderr
    assert len(list((tmp_path / "alone").iterdir())) >= 2
    check_equal_files(tmp_path / "alone", tmp_path / "together")
