"""The embedded policy: it is what its card says, learns only what it should, and is measured without error."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gymqual.__main__ import main
from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.local import LocalGym
from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import check, explain
from gymqual.qualification.support.training.scripted import ScriptedPolicy
from gymqual.trainer.evaluation import retention, rollout
from gymqual.trainer.evaluation.evaluate import Evaluation, evaluate
from gymqual.trainer.evaluation.rollout import Sampling
from gymqual.trainer.policy import sft, transcripts
from gymqual.trainer.policy.loading import EMBEDDED, FOLDER, Policy, load_policy, policy_folder
from gymqual.trainer.runs import statistics

pytestmark = pytest.mark.cpu_qualification

EPISODES = 256
TASKS = [f"v1/dev/0/{index}" for index in range(EPISODES)]


def figures(name: str) -> Evaluation:
    """Return the committed evaluation that the card of a policy quotes."""
    return Evaluation.model_validate_json((FOLDER / "figures" / f"{name}.json").read_bytes())


@check("POLICY-01", broken="a_file_is_edited")
def test_committed_policies_are_byte_for_byte_what_was_built() -> None:
    """Every file of an embedded policy MUST match its recorded sha256, none missing and none extra."""
    differing = {name: sft.check_sums(FOLDER / name) for name in EMBEDDED}
    assert differing == {name: [] for name in EMBEDDED}, explain(
        subject="files of the embedded policies that differ from SHA256SUMS",
        expected="none",
        got=differing,
        cause="a file was edited after the build, or the sums were not written again",
    )


@check("POLICY-02", broken="half_the_layers_are_silent")
def test_success_is_what_the_card_says(mini: Policy, evidence: Evidence) -> None:
    """Strict success at temperature 1 MUST lie within four standard errors of the card's, itself in 0.40 to 0.65."""
    card = figures("mini").temperature_1.success
    measured = evaluate(mini, LocalGym(GermanOrders()), TASKS, Sampling(seed=1), lambda text: None)
    error = (card * (1 - card) / EPISODES) ** 0.5
    evidence.measure(card=card, measured=measured.success, interval=measured.interval, outcomes=measured.outcomes)
    seen = (0.40 <= card <= 0.65, abs(measured.success - card) <= 4 * error)
    assert seen == (True, True), explain(
        subject="card in range, measured success near it",
        expected=(True, True),
        got=(card, measured.success, error),
        cause="weights, tokenizer, template or task wording are not those that were measured",
    )


@check("POLICY-03", broken="siblings_share_a_seed")
def test_most_groups_of_four_vary(mini: Policy, evidence: Evidence) -> None:
    """Most groups of four rollouts of one task MUST hold both success and failure, or nothing can be learnt."""
    groups = [task for task in TASKS[:48] for _ in range(4)]
    strict = evaluate(mini, LocalGym(GermanOrders()), groups, Sampling(seed=2), lambda text: None).strict
    varied = sum(len(set(strict[start : start + 4])) == 2 for start in range(0, len(strict), 4))
    evidence.measure(varied=varied, groups=48)
    assert varied > 24, explain(
        subject="groups of four with varied reward, of 48",
        expected="more than 24",
        got=varied,
        cause="siblings are not drawn independently, or the policy is sure of everything",
    )


@check("POLICY-04", broken="the_mask_is_shifted")
def test_the_loss_is_on_what_the_assistant_wrote(mini: Policy) -> None:
    """Trained spans MUST decode to the assistant's messages, end of turn included, and to nothing else."""
    conversations = [
        transcripts.teacher_messages(GermanOrders(), f"v1/sft/0/{index}", index % 2 == 1) for index in range(20)
    ]
    spans, written = [], []
    for conversation, tokens in zip(conversations, transcripts.encode(mini.tokenizer, conversations), strict=True):
        trained = [token for token, mask in zip(tokens.ids, tokens.mask, strict=True) if mask]
        spans.append(mini.tokenizer.decode(trained))
        turns = [message for message in conversation if message["role"] == "assistant"]
        rendered = [transcripts.render(mini.tokenizer, [turn]) for turn in turns]
        written.append("".join(text.removeprefix("<|im_start|>assistant\n").removesuffix("\n") for text in rendered))
    assert spans == written, explain(
        subject="decoded trained spans of twenty transcripts",
        expected=written[0],
        got=spans[0],
        cause="the mask is shifted, takes in framing or observations, or leaves the end of turn out",
    )


@check("POLICY-05", broken="the_first_call_is_the_answer")
def test_scripted_policies_score_what_they_must(mini: Policy, evidence: Evidence) -> None:
    """Through the very same evaluation a scripted oracle MUST score 1.0, silence and a wrong answer 0.0."""
    tasks = GermanOrders()
    scores = {}
    for script in ("oracle", "wrong", "noop", "guess"):
        model = ScriptedPolicy(mini, tasks, script, TASKS[:32])
        played = evaluate(replace(mini, model=model), LocalGym(tasks), TASKS[:32], Sampling(), lambda text: None)  # type: ignore[arg-type]
        scores[script] = played.success
    evidence.measure(**scores)
    expected = {"oracle": 1.0, "wrong": 0.0, "noop": 0.0, "guess": 0.0}
    assert scores == expected, explain(
        subject="strict success of scripted policies",
        expected=expected,
        got=scores,
        cause="the evaluation parses, executes or scores something else than what was sampled",
    )


@check("POLICY-06", broken="pairs_are_not_paired")
def test_a_paired_comparison_finds_what_is_there() -> None:
    """A paired comparison MUST find a planted difference and MUST NOT invent one."""
    baseline = [index % 2 == 0 for index in range(200)]
    better = [solved or index % 5 == 1 for index, solved in enumerate(baseline)]
    # As many gained as lost: the mean moves by nothing, whatever single tasks do.
    moved = [not solved if index % 20 < 2 else solved for index, solved in enumerate(baseline)]
    results = [statistics.paired(baseline, other) for other in (better, moved, baseline)]
    seen = [(result.gained, result.lost, result.p_value < 0.05) for result in results]
    assert seen == [(20, 0, True), (10, 10, False), (0, 0, False)], explain(
        subject="(gained, lost, significant) for a better, a shuffled and the same candidate",
        expected=[(20, 0, True), (10, 10, False), (0, 0, False)],
        got=seen,
        cause="outcomes are compared in total and not task by task",
    )


@check("POLICY-07", broken="likelihood_of_the_answer_alone")
def test_the_retention_probe_repeats(mini: Policy, evidence: Evidence) -> None:
    """The probe's negative log-likelihood MUST equal the card's to 1e-4 relative and repeat exactly."""
    card = retention.Retention.model_validate_json((FOLDER / "figures" / "mini_probe.json").read_bytes())
    problems = retention.read_problems(retention.PROBE)
    twice = [retention.assess(mini, problems, lambda text: None)[1] for _ in range(2)]
    near = abs(twice[0] - card.nll_per_token) <= 1e-4 * card.nll_per_token
    evidence.measure(card=card.nll_per_token, measured=twice[0])
    assert (near, twice[0] == twice[1]) == (True, True), explain(
        subject="nats a token on the committed probe: near the card's, equal twice",
        expected=(card.nll_per_token, True),
        got=twice,
        cause="other weights or problems, or something is left undetermined",
    )


def test_spans_need_no_marks_in_the_template(mini: Policy) -> None:
    """Spans found by what each message adds MUST be those that the template itself marks."""
    conversations = [transcripts.teacher_messages(GermanOrders(), f"v1/sft/0/{index}") for index in range(20)]
    marked = transcripts.encode(mini.tokenizer, conversations)
    found = [transcripts.encode_turns(mini.tokenizer, conversation) for conversation in conversations]
    assert found == marked, explain(
        subject="ids and masks of twenty transcripts, marked and found",
        expected=marked[0],
        got=found[0],
        cause="a span begins or ends at another place than the prompt's end and the end of turn",
    )


def test_the_suffix_of_a_tool_answer_is_framing_and_text_alone(mini: Policy) -> None:
    """Between two turns a context MUST grow by the template's framing and the observation, nothing rendered again."""
    suffix = rollout.tool_suffix(mini.tokenizer, [{"role": "tool", "name": "lookup", "content": '{"stück":7}'}])
    expected = '\n<|im_start|>user\n<tool_response>\n{"stück":7}\n</tool_response><|im_end|>\n<|im_start|>assistant\n'
    assert mini.tokenizer.decode(suffix) == expected, explain(
        subject="text between two sampled turns",
        expected=expected,
        got=mini.tokenizer.decode(suffix),
        cause="the dummy conversation is cut at another place than the end of turn",
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_rebuilt_mini_behaves_like_the_card(tmp_path: Path) -> None:
    """A build of ``mini`` from the card's seed MUST succeed like the card, within four standard errors."""
    assert main(["sft", "--policy", "mini", "--out", str(tmp_path / "mini")]) == 0
    rebuilt = load_policy(str(tmp_path / "mini"))
    card = figures("mini").temperature_1.success
    measured = evaluate(rebuilt, LocalGym(GermanOrders()), TASKS, Sampling(seed=3), lambda text: None).success
    error = (card * (1 - card) / EPISODES) ** 0.5
    assert abs(measured - card) <= 4 * error, explain(
        subject=f"strict success of mini built again, at {EPISODES} tasks",
        expected=f"{card} within {4 * error:.3f}",
        got=measured,
        cause="the recipe, the teachers or a library is not what built the committed weights",
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_rebuilt_policy_is_the_same_to_the_byte(tmp_path: Path) -> None:
    """Two builds of ``mini4`` from one seed MUST give the committed files."""
    assert main(["sft", "--policy", "mini4", "--out", str(tmp_path / "mini4")]) == 0
    built = load_policy(str(tmp_path / "mini4")).identity
    committed = load_policy("mini4").identity
    assert built.weights == committed.weights, explain(
        subject="weights of mini4 built again",
        expected=committed.weights,
        got=built.weights,
        cause="the build depends on threads, hash seed or library versions",
    )


def test_a_policy_is_the_same_wherever_it_lies(tmp_path: Path) -> None:
    """A policy's identity MUST follow from its files, and not from where they are."""
    here = load_policy("mini4").identity
    there = load_policy(str(shutil.copytree(policy_folder("mini4"), tmp_path / "mini4"))).identity
    assert there == here, explain(
        subject="identity of a copy of mini4",
        expected=here,
        got=there,
        cause="a path stands in what is hashed",
    )
