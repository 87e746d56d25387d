"""How a document may start before the target goes on by itself: system prompts, and first words of a user's turn.

Prompts that are filled in from word lists are soon known by heart, and what is drafted well after them is not drafted
well after others: with a first word or two the target makes up the rest, differently each time. Left to itself it asks
for much the same again and again, so most of the first words end in a word of the tokenizer's, taken at random.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np

SYSTEMS: Final = (
    "You are an AI writing assistant. Rewrite the user's text so that it is shorter and keeps its meaning.",
    "You're an assistant for rewriting text. Make the user's message friendlier and more polite.",
    "Rewrite the text that you are given in a formal and professional tone. Keep all facts.",
    "You rewrite text. Make the user's text livelier and more engaging, for a wide audience.",
    "Summarise the text that the user gives you in one or two short sentences, in the third person.",
    "Give the main point of the user's text in one very short sentence.",
    "You are a helpful editor. Correct the grammar and the spelling of the user's text and change nothing else.",
    "Summarise the conversation or letter below in up to three sentences. Name who wants what.",
    "You answer with JSON only. Take the facts of the user's text and write them as one JSON object.",
    "You are an expert programmer. Answer with Python code in a block and a short explanation.",
    "You are a patient teacher of mathematics. Solve the problem step by step and state the answer at the end.",
    "You are an assistant for everyday questions. Be brief and practical.",
    "You translate the user's text into plain English that a child understands.",
    "You are a travel and food writer. Answer in a warm, personal voice.",
    "You help with letters, applications and e-mails. Write the whole text that the user asks for.",
    "You turn the user's text into a list of bullet points.",
    "You are a science journalist. Explain what the user asks about in two paragraphs.",
    "You are an assistant that extracts names, dates and places from the user's text and lists them.",
)


STEMS: Final = (
    # chat
    "How do I", "How can", "Why do", "Why is", "What is the", "What are", "What should", "Which", "Give me", "Tell me",
    "Explain", "Describe", "I have", "I am", "My", "Can you", "Is it", "Write a letter", "Write a short story about",
    "Help me", "Recommend", "When did", "Who was", "Where", "Imagine", "Should I", "Plan", "List", "Compare",
    # code
    "Write a function that", "Write a Python function", "Write a Python class", "Write a Python program that",
    "Write a function in JavaScript", "Write a C program", "Write a Java method", "Write an SQL query",
    "Write a shell command", "Write a Go program", "Write a small web page", "Write a regular expression",
    "Write code", "Implement", "Fix this code:\n\n", "What does this code do?\n\n```python\n", "How do I sort",
    "Explain how to", "Write a unit test", "Write a Rust function", "Write a TypeScript", "Create a Python script",
    # maths
    "A train", "A box", "A farmer", "A car", "A rectangle", "A shop", "A number", "Two friends", "Three", "If",
    "Solve", "Solve for x:", "Compute", "Calculate", "Find the", "How many", "How long", "How much",
    "What is the value", "What is the probability", "The price of", "The sum of", "Simplify", "Convert", "Prove that",
    "There are", "At a school", "Tom has", "The average", "Evaluate",
    # summaries
    "Summarise:\n\n", "Summarise the following passage:\n\n", "Give the gist:\n\n", "Shorten this to one line:\n\nThe",
    "What does this passage say?\n\nThe", "List the key points of this text:\n\nIn", "In two sentences, please:\n\nThe",
    "Explain this text in simple terms:\n\nThe", "Sum up this story:\n\nOne day", "What happened here?\n\nA",
    "Headline for this article:\n\nThe city", "Summary of this report:\n\nLast year",
    # rewriting
    "Rephrase:", "Say this politely:", "Improve this sentence:", "Fix the grammar:", "Shorten:",
    "Make it formal:",
    "Translate to French: The", "Translate to Spanish: I", "Translate to German: We", "Translate into Italian: My",
    "Change to the past tense:", "Change to the third person: I", "Put this more simply:", "Edit this e-mail:\n\nHi",
    "Make this text more cheerful:", "Write this as a question: The", "Rewrite this paragraph:\n\nThe",
    "Paraphrase: The", "Turn into a dialogue:", "Make a list of this:",
    # JSON
    "Write a JSON object", "Write JSON", "Create a JSON array", "Convert to JSON:", "As JSON, please:",
    "Give me an example of JSON", "Extract the data as JSON:", "Design a JSON schema", "Return JSON with",
    "Turn the following into JSON:\n\n", "JSON for a", "A JSON file that",
)  # fmt: skip

WORDS_PER_STEM: Final = 96
_WORD: Final = re.compile(r" [a-z]{3,11}")
_SHARE_OF_WORDS: Final = 0.5
"""Of the vocabulary, in its order: what byte-pair encodings join last is rarely a word of its own."""


def widened_stems(tokenizer: Any, seed: int) -> list[str]:
    """`STEMS`, each bare and with different words behind it: pieces of the vocabulary that begin a word."""
    size = int(_SHARE_OF_WORDS * len(tokenizer))
    words = [text for text in map(tokenizer.decode, [[i] for i in range(size)]) if _WORD.fullmatch(text)]
    source, found = np.random.default_rng(seed), []
    for stem in STEMS:
        found.append(stem)
        chosen = source.choice(len(words), min(WORDS_PER_STEM, len(words)), replace=False) if words else ()
        found += [_joined(stem, words[int(index)]) for index in chosen]
    return found


def _joined(stem: str, word: str) -> str:
    return stem + word if not stem[-1].isspace() else stem + word.strip().capitalize()
