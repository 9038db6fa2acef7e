"""The harness sees what it is there to see, and goes on after it."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.harness import fuzz
from tests.fuzz.targets.faulty import FAULTS


def test_a_crash_a_hang_and_every_other_fault_is_seen_and_kept(tmp_path: Path) -> None:
    campaign = fuzz("faulty", 0, 1, tmp_path)
    assert campaign.inputs == len(FAULTS)
    assert set(campaign.failures) == set(range(1, len(FAULTS)))
    reported = {FAULTS[number]: text for number, text in campaign.failures.items()}
    assert "exit status -6" in reported["crash"]
    assert "exit status -27" in reported["hang"]
    assert "MemoryError" in reported["memory"]
    assert "KeyError" in reported["unclassified"]
    assert "a sound file was refused" in reported["refuses a sound file"]
    assert "a program in the file was run" in reported["runs a program"]
    assert "something else than its seed" in reported["reads otherwise"]
    for number, fault in enumerate(FAULTS[1:], start=1):
        assert (tmp_path / f"faulty-0-{number}.bin").read_text() == fault
