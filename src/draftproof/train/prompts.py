"""Built-in prompts for training text: six kinds of task, filled in from word lists.

None of them is a benchmark's. They only start the target off; what a drafter learns is the target's own answers.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Final

_TOPICS: Final = (
    "tides", "volcanoes", "bicycles", "the printing press", "honey bees", "vaccines", "bridges", "rainbows",
    "the stock market", "sleep", "glaciers", "coffee", "chess", "electric motors", "the moon", "friendship",
    "gardening", "jazz", "earthquakes", "sourdough bread", "databases", "batteries", "whales", "public libraries",
    "photosynthesis", "renting a flat", "learning a language", "running a marathon", "the Roman Empire", "robots",
    "a job interview", "black holes", "recycling", "the violin", "train travel", "saving money", "solar panels",
    "mountain hiking", "stage fright", "the water cycle", "cats and dogs", "map making", "winter", "fractions",
    "a first date", "tea", "the human heart", "hurricanes", "fermentation", "a school play", "democracy",
    "wind turbines", "poetry", "dinosaurs", "a leaking tap", "night buses", "the Silk Road", "penguins",
    "microscopes", "street art", "a broken promise", "mushrooms", "meditation", "the piano", "deserts", "cheese",
    "moving to another city", "the periodic table", "football", "a garden pond", "insurance", "lighthouses",
    "the internet", "antibiotics", "wolves", "camping", "the French Revolution", "rice", "a rainy holiday", "owls",
    "paper", "a difficult boss", "compound interest", "coral reefs", "knitting", "airports", "clouds",
    "an old photograph", "shyness", "computer games", "spices", "the ozone layer", "elections", "sailing", "caves",
    "soap", "ants", "bread ovens", "a power cut", "memory", "opera", "tunnels", "an allotment", "the common cold",
    "kites", "tax returns", "ballet", "fireworks", "steam engines", "a lost wallet", "sharks", "breakfast",
    "time zones", "parrots", "stamps", "a neighbour's party", "magnets", "homework", "the Renaissance", "hospitals",
    "potatoes", "rivers", "humour", "a new puppy", "satellites", "glass", "rugby", "the Arctic", "silence", "markets",
    "bicycles in the city", "vitamins", "dreams", "wine", "the alphabet", "storms at sea", "a thank-you note",
    "patience", "wool", "concrete", "an apology", "the theatre", "seeds", "motorways", "snow", "birthdays",
    "a bad haircut",
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
    "What would you say to someone who is afraid of {topic}?",
    "Compare {topic} with {other}.",
    "Write a dialogue between two friends about {topic}.",
    "Give me a fun fact about {topic} and explain it.",
    "How has {topic} changed over the last hundred years?",
    "What questions should I ask an expert on {topic}?",
    "Plan a lesson of 45 minutes about {topic}.",
    "Write a diary entry that mentions {topic} and {other}.",
    "What is {topic}, in plain words?",
    "How are {topic} and {other} connected?",
    "I need a speech of one minute about {topic}.",
    "Make a list of things to know about {topic} before a trip.",
    "Is it true that {topic} can change a life? Explain.",
    "Write a review of a book about {topic}.",
    "What can I do this weekend that has to do with {topic}?",
    "Who invented or discovered {topic}?",
    "How do I talk to my children about {topic}?",
)
_TASKS: Final = (
    "reverses a string", "checks whether a number is prime", "counts the words of a text", "interleaves two lists",
    "computes the n-th Fibonacci number", "removes duplicates from a list", "finds the largest item of a list",
    "parses a date like 2021-03-04", "computes the mean and the median", "validates an email address",
    "sorts a dictionary by its values", "reads a CSV file into a list", "flattens a nested list",
    "converts Celsius to Fahrenheit", "checks whether two words are anagrams", "multiplies two matrices",
    "computes a factorial", "finds the longest word of a sentence", "groups words by their first letter",
    "checks for balanced brackets", "counts vowels", "converts a number to binary",
    "finds the common items of two lists", "shuffles a deck of cards", "draws a triangle of stars",
    "computes the greatest common divisor", "splits a list into chunks", "capitalises each word", "downloads a file",
    "measures how long a call takes", "keeps a running total", "validates a password",
    "finds pairs that add up to ten", "rounds to two decimals", "replaces tabs by spaces", "walks through a folder",
    "computes compound interest", "removes punctuation", "checks whether a year is a leap year", "transposes a table",
    "implements a queue with two stacks", "encodes a text with a Caesar cipher", "writes a log line with the time",
    "removes empty lines from a file", "finds the second smallest number", "turns seconds into hours and minutes",
)  # fmt: skip
_CODE: Final = (
    "Write a Python function that {task}.",
    "Write a JavaScript function that {task}, with comments.",
    "Show me code that {task} and explain how it works.",
    "Write a Python function that {task}, and three tests for it.",
    "Write a C++ function that {task}.",
    "Write a Java method that {task}.",
    "How do I write code that {task}? Use Python.",
    "Write a Python class with a method that {task} and one that {second}.",
    "Write a command-line program in Python that {task}.",
    "Write a Go function that {task}.",
    "Write a Ruby method that {task}, then call it.",
    "Give me two ways to write a function that {task} and compare them.",
    "Write pseudocode for a function that {task}.",
    "Write a Rust function that {task}, with a doc comment.",
    "Write a short script that {task} and then {second}.",
)
_THINGS: Final = (
    "apples", "pencils", "tickets", "stamps", "marbles", "books", "coins", "cards", "eggs", "chairs", "bottles",
    "flowers", "bricks", "shells", "tiles", "candles",
)  # fmt: skip
_MATHS: Final = (
    "Anna has {a} {thing} and gives {b} of them away. How many are left? Explain each step.",
    "A box holds {b} {thing}. How many {thing} are in {a} boxes?",
    "Solve for x: {b}x + {a} = {c}.",
    "What is {a} percent of {c}? Show the steps.",
    "A train travels {c} km in {b} hours. What is its average speed?",
    "The sides of a rectangle are {a} and {b}. Compute its area and its perimeter.",
    "Tom buys {a} {thing} for {c} cents each. How much does he pay?",
    "What is {c} divided by {b}, and what is the remainder?",
    "The sum of two numbers is {c} and their difference is {a}. What are they?",
    "{b} friends share {c} {thing}. How many does each get?",
    "Compute {a} * {c} - {b}.",
    "What is the next number: {b}, {a}, {c}? Explain your guess.",
    "A coin is thrown {b} times. How many outcomes are there?",
    "Simplify the fraction {a}/{c}.",
    "How many seconds are there in {a} hours and {b} minutes?",
    "A price rises from {a} to {c} euros. By how many percent is that?",
    "A square has an area of {c}. How long is its side, roughly?",
    "What is {b} squared plus {a} squared?",
    "Sara reads {a} pages a day. How long does a book of {c} pages take her?",
    "Find the average of {a}, {b} and {c}.",
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
    "The orchestra lost its hall to a fire and has played in a car factory ever since.",
    "A farmer in the north grows lemons in a glass house that is heated by a data centre.",
    "Nobody at the station knew why the last train had left ten minutes early.",
    "The school bought forty laptops, and within a year twelve of them were broken.",
    "He wrote to the newspaper every week for thirty years, and it printed one letter.",
    "The lake is so clear that swimmers can see the church that was drowned when the dam was built.",
    "Doctors advise against the treatment because it has been tested on too few patients.",
    "The cook left the restaurant in March and took the recipes with him.",
    "Volunteers planted two thousand trees along the motorway, most of them oaks and limes.",
    "The company says that sales will grow again in autumn, when the new model comes out.",
    "My grandmother crossed the border on foot with two children and a sewing machine.",
    "The court decided that the fence may stay but must be painted green.",
    "An old sailor taught the children how to tie knots and how to read the clouds.",
    "The river carries less water every year, and the ferries have to wait for rain.",
    "The festival begins on Friday with a parade and ends on Sunday with fireworks over the harbour.",
    "Scientists have counted the birds on the island and found half as many as ten years ago.",
    "Visitors are asked not to feed the ducks, since bread makes them ill.",
    "The keys were found in the pocket of a coat that had been given away.",
    "A small bakery won the prize for the best cake with a recipe from 1890.",
    "The mayor promised a new playground, and the children sent her a drawing of a dragon to climb on.",
    "Because of the fog, all flights were sent to the other airport, two hours away by bus.",
    "The team lost every match until the goalkeeper got new glasses.",
    "The factory makes buttons from shells, as it did a century ago.",
    "In the end the two brothers agreed to sell the house and to keep the boat.",
    "The hotel has no rooms with a view, but breakfast is served on the roof.",
    "A student built a radio from parts that others had thrown away.",
    "The report comes to the result that the tunnel was dug too close to the spring.",
    "Most guests stay for one night, and those who stay for a second one come back every year.",
)
_SUMMARY: Final = (
    "Summarise this text in one sentence:\n\n{one} {two} {three}",
    "Give me the main points of the following text as a list.\n\n{one} {two} {three}",
    "What is this text about?\n\n{two} {three}",
    "Write a title for this text:\n\n{one} {three}",
    "Shorten this text to half of its length.\n\n{one} {two} {three}",
    "Which facts does this text give?\n\n{one} {two}",
    "{one} {two} {three}\n\nSum this up for me in a few words.",
    "Read this and answer: what happened?\n\n{two} {one}",
)
_REWRITE: Final = (
    "Rewrite this more politely: {one}",
    "Translate into French: {two}",
    "Correct the grammar and spelling, and change nothing else: {one}",
    "Rewrite this in simple words: {three}",
    "Turn this into a headline: {two}",
    "Write this in the past tense: {one}",
    "Translate into Spanish: {one}",
    "Translate into German: {three}",
    "Make this sentence shorter: {two}",
    "Make this sentence longer and more vivid: {three}",
    "Rewrite this as a question: {one}",
    "Translate into Italian: {two}",
    "Rewrite this in the style of a fairy tale: {two}",
    "Turn this into a list: {one} {two}",
    "Say the opposite: {three}",
    "Rewrite this in a formal tone: {two}",
    "Put this into your own words: {one}",
)
_RECORDS: Final = (
    "a person", "a recipe", "a book", "an invoice", "a city", "a weather report", "a song", "an animal", "a car",
    "a course at a university", "a train journey", "a doctor's appointment", "a film", "a plant", "a sports club",
    "a parcel", "a bank transfer", "a computer game character", "a restaurant menu", "a hotel room",
    "a museum ticket", "an employee", "a planet", "a phone", "a concert", "a house for sale", "a meeting",
    "a sensor reading", "a playlist", "a blog post",
)  # fmt: skip
_JSON: Final = (
    "Write a JSON object that describes {record} with five fields.",
    "Give me a JSON array of three entries, each of which describes {record}.",
    'Extract name, place and time as JSON from: "{one}"',
    "Write a JSON schema for {record}.",
    "Show {record} as JSON with nested objects.",
    "Turn this into JSON: {two}",
    "Write a JSON object with a list of two items; each item is {record}.",
    "Convert {record} to JSON and explain the fields.",
    "Give an example of an API response in JSON that holds {record} and {second}.",
    "Write JSON with the keys id, name and notes for {record}.",
)


def built_in_prompts(num_prompts: int, seed: int, passages: Sequence[Sequence[str]] = ()) -> list[str]:
    """So many prompts, the six kinds in turn, the same for the same arguments.

    passages: each three sentences or more, in order; texts to summarise, rewrite or take apart are cut from them.
    Without any, they are put together from a short list of sentences.
    """
    source = random.Random(seed)
    kinds = (_CHAT, _CODE, _MATHS, _SUMMARY, _REWRITE, _JSON)
    made = (_fill(source, source.choice(kind), passages) for kind in itertools.cycle(kinds))
    return list(itertools.islice(made, num_prompts))


def _fill(source: random.Random, template: str, passages: Sequence[Sequence[str]]) -> str:
    if passages:
        passage = source.choice(passages)
        begin = source.randrange(len(passage) - 2)
        one, two, three = passage[begin : begin + 3]
    else:
        one, two, three = source.sample(_SENTENCES, 3)
    topic, other = source.sample(_TOPICS, 2)
    # A template is about one of the two kinds of things that `second` may be.
    pool = _TASKS if "{task}" in template else _RECORDS
    first, second = source.sample(pool, 2)
    return template.format(
        topic=topic,
        other=other,
        task=first,
        record=first,
        second=second,
        thing=source.choice(_THINGS),
        a=source.randrange(3, 40),
        b=source.randrange(2, 12),
        c=source.randrange(50, 400),
        one=one,
        two=two,
        three=three,
    )
