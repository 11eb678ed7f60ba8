"""Hosts are hosts: each with its own address, disk, /tmp, processes and names, and nothing of them stays."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from host import Host, inner_pid
from lan import Lan
from processes import state, wait_dead
from waiting import wait_until

from runtime.process import ProcessIdentity

ENV = {"PATH": os.environ["PATH"], "HOME": "/"}
CLOSED_PORT = 9  # refused there: the host was reached


@pytest.fixture
def lan(tmp_path: Path) -> Iterator[Lan]:
    with Lan(tmp_path / "rack") as made:
        yield made


def test_no_host_sees_the_files_the_memory_or_the_processes_of_another(lan: Lan) -> None:
    one, other, _ = lan.hosts
    for place in (one.folder / "file", Path("/tmp/of-one"), Path("/dev/shm/of-one")):
        one.run(["touch", str(place)], ENV)
        assert subprocess.run([*one.inside(), "test", "-e", str(place)], check=False).returncode == 0
        assert subprocess.run([*other.inside(), "test", "-e", str(place)], check=False).returncode == 1
        assert not place.exists()
    sleeper = _sleeper(one)
    assert [who.pid for who in other.processes()] == []
    inside = inner_pid(sleeper.pid)
    assert inside < sleeper.pid
    assert subprocess.run([*other.inside(), "test", "-e", f"/proc/{inside}"], check=False).returncode == 1


def test_every_host_has_names_of_its_own_and_a_new_boot_id_after_each_boot(lan: Lan) -> None:
    machine, boot = "/etc/machine-id", "/proc/sys/kernel/random/boot_id"
    said = [host.run(["cat", machine, boot], ENV).split() for host in lan.hosts]
    assert said == [[host.machine_id, host.boot_id] for host in lan.hosts]
    assert len({name for names in said for name in names}) == 6
    host = lan.hosts[1]
    host.kill()
    host.boot()
    assert host.run(["cat", machine], ENV).split() == [said[1][0]]
    assert host.run(["cat", boot], ENV).split() != [said[1][1]]


def test_a_killed_host_loses_its_processes_and_its_address_and_keeps_its_disk(lan: Lan) -> None:
    one, other, _ = lan.hosts
    sleeper = _sleeper(other)
    other.run(["touch", str(other.folder / "file"), "/tmp/file"], ENV)
    other.kill()
    wait_dead([sleeper])
    wait_until(lambda: not _reaches(one, other), "the end of its address")
    other.boot()
    wait_until(lambda: _reaches(one, other), "the way back")
    assert other.run(["ls", str(other.folder / "file")], ENV)
    assert subprocess.run([*other.inside(), "test", "-e", "/tmp/file"], check=False).returncode == 1


def test_a_cut_host_is_reached_by_nobody_and_a_healed_one_by_all(lan: Lan) -> None:
    one, other, third = lan.hosts
    wait_until(lambda: _reaches(one, other) and _reaches(other, third), "everybody")
    lan.cut(1)
    assert not _reaches(one, other)
    assert not _reaches(other, third)
    assert _reaches(one, third)
    lan.heal(1)
    wait_until(lambda: _reaches(one, other) and _reaches(other, third), "everybody again")


@pytest.mark.parametrize("way", ["towards", "from"])
def test_a_link_can_be_cut_in_one_direction(lan: Lan, way: str) -> None:
    one, other, _ = lan.hosts
    wait_until(lambda: _reaches(one, other), "the way there")
    (lan.cut_towards if way == "towards" else lan.cut_from)(1)
    sender, receiver = (other, one) if way == "towards" else (one, other)
    assert not _reaches(one, other), "no answer comes back, or no question goes"
    assert _is_heard(sender, receiver)
    assert not _is_heard(receiver, sender)
    lan.heal(1)
    wait_until(lambda: _reaches(one, other), "the way there again")


def test_a_frozen_host_stands_still_and_goes_on(lan: Lan) -> None:
    sleeper = _sleeper(lan.hosts[2])
    lan.hosts[2].freeze()
    assert state(sleeper) == "T"
    lan.hosts[2].thaw()
    wait_until(lambda: state(sleeper) == "S", "going on")


@pytest.mark.parametrize("reaps", [True, False])
def test_an_orphan_that_ends_is_reaped_only_by_a_host_with_an_init(tmp_path: Path, reaps: bool) -> None:
    with Lan(tmp_path / "rack", 1, reaps=reaps) as lan:
        host = lan.hosts[0]
        host.run(["sh", "-c", "sleep 0.5 >/dev/null 2>&1 & exit 0"], ENV)
        (orphan,) = (who for who in host.processes("sleep"))
        wait_until(lambda: state(orphan) == "gone", "its end")
        there = Path(f"/proc/{orphan.pid}/stat")
        if reaps:
            wait_until(lambda: not there.exists(), "its reaping")
        else:
            assert there.exists(), "somebody reaped it"


def test_nothing_is_left_of_hosts_when_whoever_made_them_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from lan import Lan; lan = Lan(Path(sys.argv[1])).__enter__();"
        "[h.start(['sleep', '1000'], {}) for h in lan.hosts]; print(*[h._pid for h in lan.hosts], lan.pid, flush=True);"
        "time.sleep(1000)"
    )
    argv = [sys.executable, "-c", program, str(tmp_path / "rack")]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "chaos")}
    maker = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    holders = [int(pid) for pid in maker.stdout.readline().split()]
    assert len(holders) == 4
    maker.kill()
    maker.communicate()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in holders), "the end of every holder")


def _sleeper(host: Host) -> ProcessIdentity:
    host.start(["sleep", "1000"], ENV)
    (found,) = wait_until(lambda: list(host.processes("sleep")), "the sleeper")
    return found


def _reaches(one: Host, other: Host) -> bool:
    """Return whether a connection's first packet gets there and an answer back: nobody listens, so it is refused."""
    argv = [*one.inside(), "timeout", "0.5", "bash", "-c", f": > /dev/tcp/{other.address}/{CLOSED_PORT}"]
    return "refused" in subprocess.run(argv, capture_output=True, text=True, check=False).stderr


def _is_heard(sender: Host, receiver: Host) -> bool:
    """Return whether a datagram gets from one to the other."""
    port = 5000 + receiver.number
    listen = "import socket, sys; s = socket.socket(2, 2); s.settimeout(2); s.bind(('', int(sys.argv[1])))"
    argv = [*receiver.inside(), sys.executable, "-c", f"{listen}; print('.', flush=True); s.recv(9)", str(port)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as listener:
        assert listener.stdout is not None
        listener.stdout.readline()
        subprocess.run([*sender.inside(), "bash", "-c", f"echo hi > /dev/udp/{receiver.address}/{port}"], check=False)
        return listener.wait() == 0
