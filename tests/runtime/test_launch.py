"""How the processes of a launch are connected: the exchange of gradients, timeouts, and restarts."""

import warnings
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
def test_gradients_are_exchanged_as_the_flag_says_and_waited_for_ten_minutes(monkeypatch, flag, hook):
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


@pytest.mark.parametrize(
    ("restarts", "machines", "is_own"),
    [(None, None, False), ("0", "1", False), ("1", "1", True), ("3", "1", True), ("1", "2", False)],
)
def test_restarted_processes_of_one_machine_meet_anew(monkeypatch, restarts, machines, is_own):
    for name, value in (("TORCHELASTIC_RESTART_COUNT", restarts), ("GROUP_WORLD_SIZE", machines)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    handlers = {}
    monkeypatch.setattr(launch, "register_rendezvous_handler", handlers.__setitem__)
    options = launch.process_group_options()
    assert options.init_method == ("restarted://" if is_own else None)
    assert options.timeout == timedelta(minutes=10)
    assert set(handlers) == ({"restarted"} if is_own else set())
    if is_own:
        store = HashStore()
        monkeypatch.setattr(launch, "rendezvous", lambda url, **given: iter([(store, url, given)]))
        ((own_store, url, given),) = handlers["restarted"]("restarted://", world_size=2)
        own_store.set("a", "b")
        assert store.check([f"restart {restarts}/a"])
        assert (url, given) == ("env://", {"world_size": 2})


def test_what_torch_warns_of_is_not_printed_but_other_warnings_are():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        launch.distributed_options("none")
        warnings.warn("`broadcast_buffers` is deprecated.", FutureWarning, stacklevel=1)
        warnings.warn("Grad strides do not match bucket view strides.", UserWarning, stacklevel=1)
        warnings.warn("another", UserWarning, stacklevel=1)
    assert [str(warning.message) for warning in seen] == ["another"]
