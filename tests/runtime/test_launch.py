"""How the processes of a launch are connected: the exchange of gradients, timeouts, and restarts."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from accelerate.utils import DDPCommunicationHookType
from torch.distributed import HashStore

from runtime import launch


@pytest.mark.parametrize(
    ("flag", "hook"),
    [
        ("none", DDPCommunicationHookType.NO),
        ("fp16", DDPCommunicationHookType.FP16),
        ("bf16", DDPCommunicationHookType.BF16),
    ],
)
def test_gradients_are_exchanged_as_the_flag_says(monkeypatch, flag, hook):
    for name in ("TORCHELASTIC_RESTART_COUNT", "GROUP_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    ddp, group = launch.distributed_options(flag)
    assert ddp.comm_hook == hook
    assert ddp.gradient_as_bucket_view
    assert not ddp.broadcast_buffers
    assert not ddp.static_graph
    assert not ddp.find_unused_parameters
    assert group.timeout == timedelta(minutes=10)
    assert group.init_method is None


@pytest.fixture
def handlers(monkeypatch) -> dict[str, Callable]:
    """The rendezvous handlers that are registered, by the scheme of their URLs."""
    for name in ("TORCHELASTIC_RESTART_COUNT", "GROUP_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    handlers = {}
    monkeypatch.setattr(launch, "register_rendezvous_handler", handlers.__setitem__)
    return handlers


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"TORCHELASTIC_RESTART_COUNT": "0", "GROUP_WORLD_SIZE": "1"},
        {"TORCHELASTIC_RESTART_COUNT": "1", "GROUP_WORLD_SIZE": "2"},
    ],
    ids=["no launcher", "no restart", "two machines"],
)
def test_processes_meet_as_the_environment_says(monkeypatch, handlers, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    options = launch.process_group_options()
    assert options.init_method is None
    assert options.timeout == timedelta(minutes=10)
    assert handlers == {}


@pytest.mark.parametrize("restarts", ["1", "3"])
def test_restarted_processes_of_one_machine_meet_anew(monkeypatch, handlers, restarts):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
    monkeypatch.setenv("GROUP_WORLD_SIZE", "1")
    options = launch.process_group_options()
    assert options.init_method == "restarted://"
    assert options.timeout == timedelta(minutes=10)
    assert handlers.keys() == {"restarted"}


@pytest.mark.parametrize("restarts", ["1", "3"])
def test_restarted_processes_have_keys_of_their_own(monkeypatch, handlers, restarts):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
    monkeypatch.setenv("GROUP_WORLD_SIZE", "1")
    launch.process_group_options()
    store = HashStore()
    monkeypatch.setattr(launch, "rendezvous", lambda url, **given: iter([(store, url, given)]))
    ((own_store, url, given),) = handlers["restarted"]("restarted://", world_size=2)
    own_store.set("a", "b")
    assert store.check([f"restart {restarts}/a"])
    assert url == "env://"
    assert given == {"world_size": 2}
