"""The protocol of a matched experiment for people, rendered from its plan alone."""

import hashlib

from gymqual.harness.records.files import readable_json
from gymqual.trainer.experiment.plan import Plan

RECIPES = """\
| what | public recipes | here | why |
|---|---|---|---|
| advantage | a rollout's reward against its group, over the group's standard deviation (GRPO, arXiv 2402.03300) | \
the same | - |
| loss | averaged over the tokens of the whole batch (DAPO, arXiv 2503.14476), TRL's default | the same | a mean by \
rollout favours short failures |
| KL term | 0.001 (DeepSeek-R1); none (DAPO; Dr. GRPO, arXiv 2503.20783) | {beta:g} | the reward is verified, and \
forgetting is measured instead |
| clipping | one-sided wide (DAPO) or 10 (DeepSeek-R1) | never reached | every batch is trained once, with the policy \
that sampled it |
| group | 16 (DeepSeek-R1, DAPO), 8 in small studies | {group} | what this machine samples in half a second; of groups \
without difference the gradient is 0 |
| dynamic sampling | groups of equal rewards are drawn again (DAPO) | no | the arms must see the same tasks |
| batch | 512 rollouts and more | {rollouts} | the same |
| reward | a verified answer, 0 or 1 | the same: strict success | shaping would be something to tune |
| weights | all; LoRA on all linear layers loses nothing in RL, at any rank (LoRA Without Regret, 2025; Tina, \
arXiv 2504.15777) | LoRA, rank {rank}, alpha {alpha}, all linear layers | - |
| learning rate | 1e-6, all weights; about ten times that with LoRA | {rate:g}, constant | the policy has \
{parameters:,} weights; chosen on train and dev (below) |
| sampling | temperature 1, nothing cut off | the same | the ratio of a cut-off sampler to the loss is wrong |
| optimizer | AdamW, weight decay 0 to 0.1 | AdamW, weight decay 0 | decay alone would change tensors |
| selection | the last, or the best on the test set | the best on dev, then one look at test | the best of several on \
test is no held-out score |
"""


TITLE = "# Protocol: "


def protocol(plan: Plan) -> str:
    """Return the protocol."""
    training, rule = plan.training, plan.retention_rule
    rollouts = training.groups_per_step * training.group_size
    recipes = RECIPES.format(
        beta=training.beta,
        group=training.group_size,
        rollouts=rollouts,
        rank=training.lora.rank,
        alpha=training.lora.alpha,
        rate=training.learning_rate,
        parameters=plan.policy.parameters,
    )
    candidates = ", ".join(map(str, plan.candidates()))
    files = "; ".join(f"{d.problems} of `{d.name}` (sha256 {d.sha256[:16]})" for d in plan.retention)
    threads = f"{plan.threads} thread{'s' if plan.threads > 1 else ''}"
    return f"""{TITLE}{plan.policy.name} through {" and ".join(plan.arms)}

Frozen before anything ran. `experiment.json` is this protocol for programs, sha256
`{digest(plan)}`; a run refuses another one.

**Question.** Does GRPO through each gym raise held-out strict success, does the policy keep what it knew, and do the
arms, which serve one task core to one seed, sample the same ids? A development task: no answer says anything about a
model's worth elsewhere.

## Stages, in order

1. **Resume qualification** of each arm: {plan.resume_steps} steps as below; the same stopped after
   {plan.resume_steps // 2} and continued by another process. Trace, adapter, optimizer and schedule must be the
   same bytes. Anything weaker ends the experiment, unless it is allowed by a recorded flag.
2. **Training** of each arm, one at a time: {training.steps} steps of {training.groups_per_step} groups of
   {training.group_size} rollouts, a checkpoint every {training.checkpoint_every} steps, audited to the token.
3. **Replay audit** of each training run: every claim derived again from the raw evidence.
4. **Selection** on the dev split: the baseline and the candidates after steps {candidates};
   {plan.dev.episodes} episodes each at temperature 1, seed {plan.dev.seed}. Selected is the candidate with most strict
   successes, of equal ones the earliest. Assessments are played on the task core in process, by no gym.
5. **Test**, once: the baseline and each arm's selected candidate, {plan.test.episodes} episodes of the test split,
   temperature 1, seed {plan.test.seed}, the same tasks in pairs. Strict success with 95 % Wilson intervals, exact
   two-sided McNemar test. Greedy success stands beside it and decides nothing.
6. **Retention** of the baseline and each selected candidate: {files}.
   A candidate lost what the baseline knew if its exact answers fell (exact McNemar test, p < {rule.significance:g}) or
   the negative log-likelihood a token rose by more than {rule.nats:g} nats. A baseline that is worse than a uniform
   guess ({rule.uniform_nats:.2f} nats) has no log-likelihood to lose, which is then said instead.
7. **Report**, with parity: whether the arms sampled the same ids, and the first difference if not.

## Training

Tasks `{training.tasks[0]}` to `{training.tasks[-1]}`, in this order, each once. Seed {training.seed}, {plan.device},
{training.precision}, {threads}, temperature {training.temperature:g}, at most
{training.max_completion_tokens} tokens and {training.max_tool_rounds} rounds of tool calls a rollout. What was taken
from public recipes for reasoning, and what was changed:

{recipes}
**Tried before**, on train and dev alone, `mini`, one seed, 256 steps; dev success after 32, 64, ... 256 of them:

- learning rate 5e-4: 0.83, 0.84, 0.77, 0.84, 0.71, 0.88, 0.86, 0.87
- learning rate 2e-4: 0.79, 0.86, 0.87, 0.88, 0.88, 0.88, 0.87, 0.87

Chosen is the steady one. Two more things were seen and not chosen by: MGSM's negative log-likelihood, which fell a
little at 5e-4 and rose by more than a nat at 2e-4; and the test tasks, once, in a whole experiment at 5e-4 (0.891 for
its step 192).

## Frozen

| what | digest or version |
|---|---|
| policy `{plan.policy.name}`: weights | `{plan.policy.weights}` |
| tokenizer, chat template | `{plan.policy.tokenizer[:16]}`, `{plan.policy.chat_template[:16]}` |
| task core | `{training.core}` |
{"".join(f"| gym {arm}, as served | `{found}` |{chr(10)}" for arm, found in sorted(plan.gyms.items()))}\
{"".join(f"| {name} | {found} |{chr(10)}" for name, found in sorted(plan.versions.items()))}
{"".join(f"Note: {note}.{chr(10)}" for note in plan.notes)}"""


def digest(plan: Plan) -> str:
    """Return the sha256 of a plan as it is written."""
    return hashlib.sha256(readable_json(plan.model_dump(mode="json"))).hexdigest()
