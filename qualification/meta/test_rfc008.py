"""The mapping to OpenEnv's RFC 008: of ids that exist, complete, and told in the manifest."""

from collections import Counter
from pathlib import Path

import pytest

from gymqual.harness.plugin import rfc008
from gymqual.harness.plugin.registry import REGISTRY, explain
from gymqual.harness.plugin.run import Ledger
from gymqual.harness.records import manifest
from gymqual.harness.records.files import ROOT
from gymqual.qualification.support import catalogue

pytestmark = pytest.mark.self_test

UPSTREAM = ROOT / "qualification/support/openenv/validation_ids.txt"


def _upstream() -> set[str]:
    return {line for line in UPSTREAM.read_text().splitlines() if line and not line.startswith("#")}


def test_every_upstream_id_has_its_answer() -> None:
    """Every id of upstream's policy MUST be mapped or have a reason why not, and no other id MUST be mapped."""
    answered = [*rfc008.EQUAL, *rfc008.NO_EQUAL]
    wrong = sorted(_upstream() ^ set(answered)) + [id for id, times in Counter(answered).items() if times > 1]
    assert wrong == [], explain(
        subject="ids of RFC 008 in only one of upstream's policy and harness/plugin/rfc008.py, or answered twice",
        expected=[],
        got=wrong,
        cause="a misspelt id, or upstream's list was renewed and the mapping was not",
    )


def test_an_id_means_one_thing_in_each_gym() -> None:
    """An id of theirs MUST be mapped to documented checks, and to one check of a gym at most."""
    catalogue.table()
    wrong = {}
    for theirs, ours in rfc008.EQUAL.items():
        gyms = Counter(id.partition("-")[0] for id in ours)
        unknown = [id for id in ours if id not in REGISTRY]
        if unknown or max(gyms.values(), default=0) != 1:
            wrong[theirs] = (unknown, dict(gyms))
    assert wrong == {}, explain(
        subject="ids of RFC 008 mapped to checks that are unknown, or to several of one gym",
        expected={},
        got=wrong,
        cause="two checks with different assertions are said to mean the same",
    )


@pytest.mark.parametrize(("check", "ids"), [("OPENENV-N-12", ["runtime.episode_determinism"]), ("NEMO-S-01", None)])
def test_the_manifest_tells_the_ids(tmp_path: Path, check: str, ids: list[str] | None) -> None:
    """A record MUST name the ids that its check is equal to; one without MUST look as it did before there were any."""
    ledger = Ledger("qualification", "", ())
    ledger.records.append(
        {"id": check, "must": "", "gym": None, "test": "file.py::test", "outcome": "passed", "duration_s": 0.0}
    )
    ledger.write(tmp_path, 0)
    told = manifest.read(tmp_path).model_dump(mode="json")["checks"][0].get("rfc008")
    assert told == ids, explain(
        subject=f"ids of RFC 008 in the record of {check}",
        expected=ids,
        got=told,
        cause="the mapping is not looked up when the manifest is written, or an empty one is written down",
    )
