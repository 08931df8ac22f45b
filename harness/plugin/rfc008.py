"""Which of our checks mean the same as a validation check of OpenEnv's RFC 008, by its id.

Read in openenv 0.10.0, policy ``severity-v2``: the graders where there are any (static.manifest and some of the runtime
level), else the RFC's text. A check stands here only where it asserts what theirs measures, so that ours refuses what
theirs would. Some of ours assert more in the same breath: their failure need not be one of theirs.

``EQUAL`` and ``NO_EQUAL`` together are all ids of that policy. Nobody upstream has looked at this, and it is not a
report of ``openenv validate``.
"""

EQUAL: dict[str, tuple[str, ...]] = {
    # Both play it again, state included, in a new session and in a new server.
    "runtime.episode_determinism": ("OPENENV-N-12",),
    # Both reset in one session and look for what an earlier episode left; ours counts memory and descriptors as well.
    "runtime.episode_isolation": ("OPENENV-N-11",),
    "semantic.canary_floor": ("NEMO-S-03", "VF-S-02"),
    "semantic.floor_gap": ("NEMO-S-03", "VF-S-02"),
    "semantic.no_solution_leakage": ("NEMO-S-04", "OPENENV-N-03", "VF-S-04"),
    "semantic.oracle_max": ("NEMO-S-03", "VF-S-02"),
}
"""Ids of ours by theirs, at most one for each gym."""

_IMAGES = "about container images and archives, of which there are none here"
_DECLARED = "about what a package declares; here an identity says what was executed"
_SANDBOX = "about the sandbox that serves an environment; the harness has processes, not containers"
_RUBRIC = "about RFC 004's rubrics, which no gym here has"
_UNSAID = "the RFC gives a name and no procedure"
_OPERATOR = "reserved for operators, without a procedure"

NO_EQUAL: dict[str, str] = {
    "static.manifest": "upstream's own command is run on the OpenEnv gym by a test, not by a documented check",
    "static.reproducible_build": _IMAGES,
    "static.image_hygiene": _IMAGES,
    "static.layout": _IMAGES,
    "static.sbom": _IMAGES,
    "static.oci_labels": _IMAGES,
    "static.resource_declaration": _DECLARED,
    "static.timeout_ceiling": _DECLARED,
    "static.dependency_pinning": "every stack is built from a hashed lock and its digest is in the manifest; no check",
    "static.task_distribution_pinning": "the task core's digest is in every identity and is compared, not declared",
    "runtime.startup": "a server that does not start makes its checks fail as not testable; no check of its own",
    "runtime.reward_well_formed": "contrary: theirs wants a number at every step, OPENENV-N-02 null before the end",
    "runtime.rubric_introspectable": _RUBRIC,
    "runtime.observation_schema": "what is served is held to the core's bytes, not to the advertised schema",
    "runtime.state_contract": "OPENENV-N-07 looks at id and step count, and does not count the verification as a step",
    "runtime.trajectory_record": "the examiner records the wire itself; no gym here keeps a record to be asked for",
    "runtime.reward_attribution": _RUBRIC,
    "runtime.tool_declaration_accuracy": "OPENENV-C-05 holds what a trainer sees to the task's tools, no manifest",
    "runtime.task_declaration_accuracy": _DECLARED,
    "runtime.seed_control": "a task id names the whole episode; no gym here takes a seed",
    "runtime.network_policy": _SANDBOX,
    "runtime.host_containment": _SANDBOX,
    "runtime.resource_bounds": _SANDBOX,
    "runtime.oracle_containment": "no oracle is served, so that there is none to be withheld",
    "semantic.verifier_determinism": f"{_UNSAID}; OPENENV-N-12 repeats whole episodes, their reward included",
    "semantic.verifier_portability": _UNSAID,
    "semantic.resource_envelope": _SANDBOX,
    "semantic.replayability": f"{_UNSAID}; nearest are NEMO-S-11 and VF-O-03",
    "hub.layer_isolation": _IMAGES,
    "hub.time_to_first_work": _OPERATOR,
    "hub.cosign_signature": _IMAGES,
    "hub.cross_host_determinism": _OPERATOR,
    "hub.immutable_versioning": _OPERATOR,
    "statistical.reward_reachability": _OPERATOR,
    "statistical.difficulty_separation": _OPERATOR,
    "statistical.headroom": _OPERATOR,
    "statistical.variance_bound": _OPERATOR,
    "statistical.training_signal": _OPERATOR,
    "statistical.adversarial_floor": _OPERATOR,
    "statistical.gameability_gap": _OPERATOR,
}
"""Why no check of ours means the same."""


def equal_to(check: str) -> tuple[str, ...]:
    """Return the ids of RFC 008 that a check of ours means the same as."""
    return tuple(theirs for theirs, ours in EQUAL.items() if check in ours)
