"""The profile of a training step: what counts to a phase, how stacks are read, and the committed sample."""

import json

import pytest

from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.files import ROOT
from gymqual.trainer.profiling import phases
from gymqual.trainer.profiling.step_profile import PROFILE, functions_of, readme

pytestmark = pytest.mark.self_test

SAMPLE = ROOT / "reports/sample/step-profile"


def test_a_phase_is_told_without_those_inside_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time MUST count to the innermost phase alone, and the first step and what is outside of steps to none."""
    # First step; second step, decode, audit, both ended, the end.
    times = iter([0.0, 9.0, 10.0, 11.0, 13.0, 16.0, 20.0, 25.0])
    monkeypatch.setattr(phases, "_now", lambda: next(times))
    clock = phases.Clock()
    clock.begin_step()
    clock.end_step(first=True)
    clock.begin_step()
    with clock.phase("decode"), clock.phase("audit"):
        pass
    clock.end_step(first=False)
    with clock.phase("prefill"):
        pass
    seen = ({name: seconds for name, seconds in clock.seconds.items() if seconds}, clock.steps)
    expected = ({"decode": 2.0 + 4.0, "audit": 3.0, "rest": 1.0 + 5.0}, 1)
    assert seen == expected, explain(
        subject="(seconds by phase, steps)",
        expected=expected,
        got=seen,
        cause="an outer phase goes on while an inner one runs, or the first step is counted",
    )


def test_stacks_are_counted_by_their_innermost_function() -> None:
    """Samples of the main thread MUST count to the last frame of their stack, whatever its line, as shares."""
    begun = "_run_module_as_main (<frozen runpy>:1)"
    lines = [f"{begun};work (/x/site-packages/b/c.py:7) 3", f"{begun};work (/x/site-packages/b/c.py:9) 3"]
    lines += [f"{begun};main (a.py:2) 2", "Thread._bootstrap (threading.py:1);wait (threading.py:2) 5", " 4"]
    seen = functions_of(lines)
    expected = [{"function": "work (b/c.py)", "share": 0.75}, {"function": "main (a.py)", "share": 0.25}]
    assert seen == expected, explain(
        subject="functions of folded stacks",
        expected=expected,
        got=seen,
        cause="frames are told apart by their line, or the outermost one is counted",
    )


def test_the_committed_profile_is_the_table_beside_it() -> None:
    """README.md of the sample MUST be what its profile.json comes to."""
    seen = (SAMPLE / "README.md").read_text()
    expected = readme(json.loads((SAMPLE / PROFILE).read_bytes()))
    assert seen == expected, explain(
        subject="reports/sample/step-profile/README.md",
        expected="the tables of its profile.json",
        got="other text",
        cause="one of the two was changed by hand, or the wording of tables changed; profile again",
    )
