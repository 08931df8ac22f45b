"""The canaries of the gyms: faults of an environment that must never get through, whichever gym it is served by.

Each is a defect of the real server process (the rows that a NeMo model is prompted from excepted, which no server
writes), and each has a check that owns it: with ``--broken`` that check must flag it at its own assertion, and the
check before it must be unharmed by it or own it as well.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Canary:
    """One fault of an environment, and who flags it."""

    name: str
    models: str
    """The real fault that it stands for, with a public report where there is one."""
    owners: dict[str, tuple[str, str]]
    """Gym to (id of the check that flags it, name of the defect in that gym)."""


CANARIES: dict[str, Canary] = {
    canary.name: canary
    for canary in (
        Canary(
            "a_malformed_answer_is_paid",
            "The verifier takes a number out of a message that is not exactly one: '42 kg oder 43' is read as 42 "
            "(Math-Verify #44 read two numbers as one).",
            {
                "nemo": ("NEMO-S-03", "malformed_answers_pay"),
                "openenv": ("OPENENV-N-02", "malformed_answers_pay"),
            },
        ),
        Canary(
            "an_observation_tells_the_answer",
            "An error text holds what was expected, as a KeyError or a helpful message does, so that a wrong call "
            "reveals the hidden record (OpenEnv serialises the text of an environment's exception to the client).",
            {
                "nemo": ("NEMO-S-04", "errors_tell_the_record"),
                "openenv": ("OPENENV-N-03", "errors_tell_the_record"),
            },
        ),
        Canary(
            "the_prompt_tells_the_answer",
            "What the model starts from is written from the whole task, gold and all: NeMo's dataset row, OpenEnv's "
            "answer to a reset.",
            {
                "nemo": ("NEMO-S-04", "rows_tell_the_record"),
                "openenv": ("OPENENV-N-03", "prompt_tells_the_record"),
            },
        ),
        Canary(
            "an_answer_beside_the_tools_tells_the_answer",
            "Ground truth is serialised in an answer that is no observation: OpenEnv #611, the state; here also the "
            "answer to NeMo's seed.",
            {
                "nemo": ("NEMO-S-04", "seed_returns_the_record"),
                "openenv": ("OPENENV-N-03", "state_holds_the_record"),
            },
        ),
        Canary(
            "siblings_of_a_group_share_state",
            "State is kept by task, so that the concurrent rollouts of one group see, and are judged by, each other's "
            "calls (a pooled or cached environment instance; no public report known).",
            {
                "nemo": ("NEMO-S-09", "siblings_share_their_calls"),
                "openenv": ("OPENENV-N-07", "siblings_share_their_calls"),
            },
        ),
        Canary(
            "all_sessions_share_state",
            "State is kept by process, so that a session is served by whichever was opened last (a module-level "
            "environment behind a concurrent server; no public report known).",
            {
                "nemo": ("NEMO-S-09", "siblings_share_a_session"),
                "openenv": ("OPENENV-N-07", "siblings_share_an_episode"),
            },
        ),
        Canary(
            "lookup_ignores_its_argument",
            "A mocked lookup returns this task's record whatever was asked for, so that asking rightly is never "
            "learnt (no public report known).",
            {
                "nemo": ("NEMO-S-04", "lookup_ignores_the_id"),
                "openenv": ("OPENENV-N-02", "lookup_ignores_the_id"),
            },
        ),
        Canary(
            "the_calculator_ignores_its_argument",
            "A mocked calculator returns the stored result whatever the expression is, and so tells the answer (no "
            "public report known).",
            {
                "nemo": ("NEMO-S-04", "calculator_ignores_the_expression"),
                "openenv": ("OPENENV-N-02", "calculator_ignores_the_expression"),
            },
        ),
        Canary(
            "any_number_is_accepted",
            "The verifier asks whether there is a number and not which (no public report known; OpenEnv #695, where "
            "the agent could write the file that the scorer reads, comes to the same).",
            {
                "nemo": ("NEMO-S-03", "any_number_pays"),
                "openenv": ("OPENENV-N-02", "any_number_pays"),
            },
        ),
        Canary(
            "an_observation_differs_from_run_to_run",
            "The same call shows another text in another process: an id, a clock or a salted order in it (Gymnasium "
            "#1084: a checker passed an environment that was not deterministic after its first reset).",
            {
                "nemo": ("NEMO-S-05", "errors_name_the_process"),
                "openenv": ("OPENENV-N-12", "errors_name_the_process"),
            },
        ),
        Canary(
            "hidden_quantities_differ_from_run_to_run",
            "The same task hides other numbers in another episode: a generator that goes on where the last one left "
            "it (Gymnasium #1084).",
            {
                "nemo": ("NEMO-S-11", "quantities_are_drawn_anew"),
                "openenv": ("OPENENV-N-02", "quantities_are_drawn_anew"),
            },
        ),
    )
}
