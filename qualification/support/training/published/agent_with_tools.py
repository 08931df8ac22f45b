"""An agent that asks a database before it answers yes or no.

Written anew after ``examples/scripts/grpo_agent.py`` of huggingface/trl (Apache-2.0), with its structure: one tool of
read-only SQL, rewards for the answer, for the shape of the conversation and for the queries. Other than there, the
database is made here, the tool's time limit is SQLite's own, and the tool returns text: a list is what TRL 1.16 takes
for blocks of content, of which many chat templates, Qwen3's among them, show the model nothing at all.

    python agent_with_tools.py --model_name_or_path DIR --output_dir DIR --max_steps 100
"""

# pyright: reportPrivateImportUsage=false

import re
import sqlite3
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser

DATABASE = "genes.db"
GENES = ("TP53", "MDM2", "KRAS", "BRAF", "EGFR")
PAIRS = [(a, b) for i, a in enumerate(GENES) for j, b in enumerate(GENES) if a != b and (i * 3 + j) % 2]
PREAMBLE = "Table pairs(a, b) holds interacting genes. Query it, then answer *Yes* or *No*."
STEP_LIMIT = 100_000
"""Instructions of SQLite's machine between two looks at whether a query has gone on for too long."""


def query_genes(sql_command: str) -> str:
    """
    Execute a read-only SQL command on the database of gene interactions.

    Args:
        sql_command: The SQL command to execute.

    Returns:
        The rows found.
    """
    connection = sqlite3.connect(f"file:{DATABASE}?mode=ro", uri=True)
    connection.set_progress_handler(lambda: 1, STEP_LIMIT)
    try:
        return str(connection.execute(sql_command).fetchall())
    finally:
        connection.close()


def correctness_reward(completions: list[Any], answer: list[str], **_: Any) -> list[float | None]:
    """The last message must hold the right answer between stars."""
    rewards: list[float | None] = []
    for completion, right in zip(completions, answer, strict=True):
        found = re.search(r"\*(yes|no)\*", (completion[-1].get("content") or "").lower())
        rewards.append(-0.5 if found is None else 0.6 if found[1] == right.lower() else -1.0)
    return rewards


def structure_reward(completions: list[Any], **_: Any) -> list[float | None]:
    """A call, its response and something said is the shape that is wanted."""
    rewards: list[float | None] = []
    for completion in completions:
        called = any(turn.get("tool_calls") for turn in completion)
        responded = any(turn["role"] == "tool" for turn in completion)
        said = any(turn["role"] == "assistant" and turn.get("content") for turn in completion)
        rewards.append((0.1 if said else 0.05) if responded else -0.15 if called else 0.0)
    return rewards


def query_reward(completions: list[Any], answer: list[str], **_: Any) -> list[float | None]:
    """Few and pointed queries, whose results support the right answer."""
    rewards: list[float | None] = []
    for completion, right in zip(completions, answer, strict=True):
        calls = [call["function"] for turn in completion for call in turn.get("tool_calls") or ()]
        queries = [str(call["arguments"]).lower() for call in calls]
        results = [turn["content"] for turn in completion if turn["role"] == "tool"]
        pointed = sum(" where " in query for query in queries)
        reward = 0.4 * min(pointed, 3) - 0.5 * (len(queries) - pointed) - 1.5 * (len(queries) > 3)
        if any("error" in result for result in results):
            reward -= 2.0
        elif not queries:
            reward -= 1.5
        else:
            hit = any(result != "[]" for result in results)
            reward += 2.0 if hit == (right == "Yes") else -1.5
        rewards.append(reward)
    return rewards


def make_database() -> None:
    """Write the table anew."""
    connection = sqlite3.connect(DATABASE)
    with connection:
        connection.execute("DROP TABLE IF EXISTS pairs")
        connection.execute("CREATE TABLE pairs (a TEXT, b TEXT)")
        connection.executemany("INSERT INTO pairs VALUES (?, ?)", PAIRS)
    connection.close()


def examples() -> list[dict[str, Any]]:
    """Return prompts and their answers."""
    return [
        {
            "prompt": [{"role": "user", "content": f"{PREAMBLE}\nQuestion: Does the gene {a} interact with {b}?"}],
            "answer": "Yes" if (a, b) in PAIRS else "No",
        }
        for a in GENES
        for b in GENES
        if a != b
    ]


def main() -> None:
    """Train by what the command line says."""
    parser = TrlParser((GRPOConfig, ModelConfig))  # type: ignore[arg-type]
    training_args, model_args = parser.parse_args_and_config()
    training_args.chat_template_kwargs = {"enable_thinking": False}
    make_database()
    trainer = GRPOTrainer(
        model=model_args.model_name_or_path,
        train_dataset=Dataset.from_list(examples()),
        tools=[query_genes],
        reward_funcs=[correctness_reward, structure_reward, query_reward],
        args=training_args,
    )
    trainer.train()
    trainer.save_model(training_args.output_dir)


if __name__ == "__main__":
    main()
