"""A few prompts of six kinds, for a first look; `--prompts` takes others."""

from __future__ import annotations

from typing import Final

from draftproof.bench.trees import Prompt

BUILT_IN: Final = (
    Prompt("chat", "My neighbour plays the drums at night. How do I bring it up without a quarrel?"),
    Prompt("chat", "What should I see in a harbour town on a rainy afternoon?"),
    Prompt("code", "Write a Python function that merges two sorted lists into one sorted list."),
    Prompt("code", "Write a shell loop that renames every .jpeg file in a folder to .jpg."),
    Prompt(
        "maths", "A tank holds 240 litres and loses 3 litres an hour. When is it down to a quarter? Show the steps."
    ),
    Prompt("maths", "Anna is twice as old as Ben; in 6 years they are 48 together. How old are they now?"),
    Prompt(
        "summarise",
        "Summarise in one sentence: The ferry was late by two hours because the ice had closed the strait, and the "
        "captain chose the longer way around the island rather than wait for the icebreaker.",
    ),
    Prompt(
        "summarise",
        "Give the main point: Bees find their way by the sun, but under clouds they can still read its place from the "
        "pattern of polarised light in any patch of blue sky.",
    ),
    Prompt("rewrite", "Rewrite politely: Send me the figures today, you are late again and everybody is waiting."),
    Prompt("rewrite", "Rewrite in the past tense: The train leaves at six, and we run along the platform to catch it."),
    Prompt("JSON", 'Describe a bicycle as JSON with the keys "colour", "gears", "price" and "tags" (a list).'),
    Prompt("JSON", 'Turn this into JSON with "name", "age" and "city": Mira is 34 years old and lives in Porto.'),
)
