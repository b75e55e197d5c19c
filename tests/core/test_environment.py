"""Environment facts are stable; processes are told apart by when they began."""

from __future__ import annotations

import os
import subprocess
import sys

from kclab.core.environment import boot_id, environment_facts, process_started_us


def test_two_processes_of_one_machine_have_one_environment() -> None:
    code = "import json, kclab.core.environment as e; print(json.dumps(e.environment_facts()))"
    outputs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
        for _ in range(2)
    }
    assert len(outputs) == 1


def test_facts_name_the_software_but_not_the_host() -> None:
    facts = environment_facts()
    assert {"os", "python", "torch", "kclab"} <= set(facts)
    assert os.uname().nodename not in str(facts)


def test_a_process_keeps_its_start_and_another_has_its_own() -> None:
    child = subprocess.Popen(["sleep", "30"])
    try:
        own, other = process_started_us(os.getpid()), process_started_us(child.pid)
        assert own is not None and other is not None
        assert process_started_us(os.getpid()) == own
        assert other >= own
    finally:
        child.kill()
        child.wait()


def test_a_finished_process_is_gone_even_before_it_is_reaped() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_started_us(child.pid) is None
    child.wait()
    assert process_started_us(child.pid) is None


def test_the_boot_is_named() -> None:
    assert boot_id() == boot_id()
    assert boot_id()
