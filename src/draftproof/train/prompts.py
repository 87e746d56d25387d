"""Built-in prompts for training text: six kinds of task, filled in from word lists.

None of them is a benchmark's. They only start the target off; what a drafter learns is the target's own answers.
"""

from __future__ import annotations

import itertools
import random
from typing import Final

_TOPICS: Final = (
    "tides", "volcanoes", "bicycles", "the printing press", "honey bees", "vaccines", "bridges", "rainbows",
    "the stock market", "sleep", "glaciers", "coffee", "chess", "electric motors", "the moon", "friendship",
    "gardening", "jazz", "earthquakes", "sourdough bread", "databases", "batteries", "whales", "public libraries",
    "photosynthesis", "renting a flat", "learning a language", "running a marathon", "the Roman Empire", "robots",
    "a job interview", "black holes", "recycling", "the violin", "train travel", "saving money", "solar panels",
    "mountain hiking", "stage fright", "the water cycle", "cats and dogs", "map making", "winter", "fractions",
)  # fmt: skip
_CHAT: Final = (
    "Explain {topic} to a child of ten.",
    "What are three common mistakes people make about {topic}?",
    "Give me five tips about {topic}.",
    "Why does {topic} matter? Answer in one paragraph.",
    "Write a short poem about {topic}.",
    "I know nothing about {topic}. Where should I begin?",
    "Tell me a short story in which {topic} plays a part.",
    "What are the advantages and disadvantages of {topic}?",
    "Write an email to a friend about {topic}.",
    "Describe the history of {topic} in a few sentences.",
)
_TASKS: Final = (
    "reverses a string", "checks whether a number is prime", "counts the words of a text", "merges two sorted lists",
    "computes the n-th Fibonacci number", "removes duplicates from a list", "finds the largest item of a list",
    "parses a date like 2021-03-04", "computes the mean and the median", "validates an email address",
    "sorts a dictionary by its values", "reads a CSV file into a list", "flattens a nested list",
    "converts Celsius to Fahrenheit", "checks whether two words are anagrams", "multiplies two matrices",
    "finds the longest word of a sentence", "splits a list into chunks", "counts vowels", "implements binary search",
)  # fmt: skip
_CODE: Final = (
    "Write a Python function that {task}.",
    "Write a JavaScript function that {task}, with comments.",
    "Show me code that {task} and explain how it works.",
    "Write a Python function that {task}, and three tests for it.",
)
_THINGS: Final = ("apples", "pencils", "tickets", "stamps", "marbles", "books", "coins", "cards", "eggs", "chairs")
_MATHS: Final = (
    "Anna has {a} {thing} and gives {b} of them away. How many are left? Explain each step.",
    "A box holds {b} {thing}. How many {thing} are in {a} boxes?",
    "Solve for x: {b}x + {a} = {c}.",
    "What is {a} percent of {c}? Show the steps.",
    "A train travels {c} km in {b} hours. What is its average speed?",
    "The sides of a rectangle are {a} and {b}. Compute its area and its perimeter.",
)
_SENTENCES: Final = (
    "The town council met on Monday to talk about the old bridge, which has been closed since the flood.",
    "Researchers found that people who walk every day report better sleep and fewer headaches.",
    "The new library opens at nine, closes at eight, and lends tools as well as books.",
    "Prices of vegetables rose after a dry spring, while bread stayed as cheap as last year.",
    "Our team finished the first version of the app, but the tests on old phones still fail.",
    "She moved to the coast to paint, sold her first picture in June, and opened a small gallery in autumn.",
    "The museum shows maps from five centuries, some of them drawn by sailors who never returned.",
    "After the storm the power was out for two days, and neighbours cooked together in the street.",
)
_SUMMARY: Final = (
    "Summarise this text in one sentence:\n\n{one} {two} {three}",
    "Give me the main points of the following text as a list.\n\n{one} {two} {three}",
    "What is this text about?\n\n{two} {three}",
)
_REWRITE: Final = (
    "Rewrite this more politely: {one}",
    "Translate into French: {two}",
    "Correct the grammar and spelling, and change nothing else: {one}",
    "Rewrite this in simple words: {three}",
    "Turn this into a headline: {two}",
    "Write this in the past tense: {one}",
)
_RECORDS: Final = ("a person", "a recipe", "a book", "an invoice", "a city", "a weather report", "a song", "an animal")
_JSON: Final = (
    "Write a JSON object that describes {record} with five fields.",
    "Give me a JSON array of three entries, each of which describes {record}.",
    'Extract name, place and time as JSON from: "{one}"',
    "Write a JSON schema for {record}.",
)


def built_in_prompts(num_prompts: int, seed: int) -> list[str]:
    """So many prompts, the six kinds in turn, the same for the same seed."""
    source = random.Random(seed)
    kinds = (_CHAT, _CODE, _MATHS, _SUMMARY, _REWRITE, _JSON)
    made = (_fill(source, source.choice(kind)) for kind in itertools.cycle(kinds))
    return list(itertools.islice(made, num_prompts))


def _fill(source: random.Random, template: str) -> str:
    one, two, three = source.sample(_SENTENCES, 3)
    return template.format(
        topic=source.choice(_TOPICS),
        task=source.choice(_TASKS),
        thing=source.choice(_THINGS),
        record=source.choice(_RECORDS),
        a=source.randrange(3, 40),
        b=source.randrange(2, 12),
        c=source.randrange(50, 400),
        one=one,
        two=two,
        three=three,
    )
