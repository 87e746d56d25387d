"""`bench trees` on a table: every cell of the grid runs, its figures add up, and its files are what they say."""

import json
import math
import xml.etree.ElementTree as ElementTree

import pytest
from click.testing import CliRunner

from draftproof import LLM, SamplingParams
from draftproof.bench.grid import Cell, cells
from draftproof.bench.plots import plot
from draftproof.bench.prompts import BUILT_IN, KINDS, built_in
from draftproof.bench.trees import Figure, Measured, Prompt, advice, figures, measure, read_prompts
from draftproof.config import TREE_VERIFIERS, SpeculativeConfig
from draftproof.drafters import make_drafter
from draftproof.errors import ParameterError
from draftproof.targets.toy import TableTarget
from tests.drafters.tree.tables import uneven_table

RIVALS = ("match", "rejection", "block", *TREE_VERIFIERS)
PROMPTS = [Prompt("low", "1 2 1 2 1"), Prompt("high", "4 5 4 5"), Prompt("high", "3 3 3")]
METHOD = {"method": "suffix", "model": None}


class Numbers:
    """A tokenizer of numbers."""

    chat_template = None

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [int(word) for word in text.split()]}


@pytest.fixture(scope="module")
def measured():
    llm = LLM.from_target(TableTarget(uneven_table(6, 2)), Numbers())
    drafter = make_drafter(SpeculativeConfig(**METHOD, prompt_lookup_min=1), llm.target, llm.tokenizer, llm.chain)
    grid = list(cells([4, 9], [0.0, 1.0], ["best_first", "top_k", "static"], RIVALS, greedy=False, is_lookup=True))
    params = SamplingParams(seed=5, max_tokens=30, detokenize=False)
    return grid, list(measure(llm, drafter, grid, PROMPTS, params, METHOD)), params


def test_every_cell_is_measured_on_every_prompt(measured):
    grid, found, _ = measured
    assert len(found) == len(grid) * len(PROMPTS) == len({(item.cell.rule, item.cell.num_nodes) for item in found}) * 3
    assert {cell.verifier for cell in grid} == {"keyed", *RIVALS}
    assert all(item.num_tokens == 30 and 0 < item.num_passes <= 30 for item in found)
    assert sum(item.num_drafted for item in found) > 0


def test_figures_are_ratios_of_sums_and_advice_names_the_best(measured):
    grid, found, params = measured
    all_figures = figures(found, "suffix", params)
    assert {item.kind for item in all_figures} == {"low", "high", "all"}
    for item in all_figures:
        own = [m for m in found if (m.cell.rule, m.cell.num_nodes) == (item.rule, item.num_nodes)]
        own = [m for m in own if item.kind in ("all", m.kind)]
        assert item.tokens_per_pass == sum(m.num_tokens for m in own) / sum(m.num_passes for m in own)
        assert item.num_prompts == len(own) and (item.half_width == math.inf) == (len(own) == 1)
    [said] = advice(all_figures)
    best = max((i for i in all_figures if i.kind == "all" and i.verifier == "keyed"), key=lambda i: i.tokens_per_pass)
    assert f"{best.tokens_per_pass:.2f}" in said and best.rule in said
    assert "gains" in said or "costs" in said


def test_the_grid_at_temperature_zero_has_no_noise_and_no_draws():
    grid = list(cells([8], [0.0, 0.5, 1.0], ["best_first"], RIVALS, greedy=True, is_lookup=False))
    assert [cell.rule for cell in grid] == [
        "chain, keyed",
        "chain, auto",
        "tree, best_first, zeta 0",
        "tree, auto",
        "chain or tree, auto",
    ]
    warm = list(cells([8], [0.5, 1.0], ["best_first"], RIVALS, greedy=False, is_lookup=False))
    for cell in warm:
        SpeculativeConfig(method="draft_model", model="x", **cell.fields)
    assert len({cell.rule for cell in warm}) == len(warm)


def test_an_interval_is_over_prompts():
    """Two prompts of 10 tokens in 5 and 10 tokens in 10 passes: 20 / 15, residuals 10/3 and -10/3."""
    cell = Cell("rule", 8, {"verifier": "keyed"})
    items = [Measured(cell, "all", 10, passes, 1.0, 0) for passes in (5, 10)]
    [figure] = figures(items, "suffix", SamplingParams())
    assert figure.tokens_per_pass == pytest.approx(4 / 3)
    spread = math.sqrt(2 * (10 / 3) ** 2)
    assert figure.half_width == pytest.approx(1.96 * spread * math.sqrt(2) / 15)


def test_prompts_from_a_file(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a", "kind": "x"}\n\n{"prompt": "b", "kind": "x"}\n{"prompt": "c", "task": "y"}\n')
    assert read_prompts(path) == [Prompt("x", "a"), Prompt("x", "b"), Prompt("y", "c")]
    assert read_prompts(path, 1) == [Prompt("x", "a"), Prompt("y", "c")]
    for text in ("", "{}\n", "[1]\n", "not json\n"):
        path.write_text(text)
        with pytest.raises(ParameterError, match="prompts"):
            read_prompts(path)
    with pytest.raises(ParameterError, match="prompts"):
        read_prompts(tmp_path / "none")
    assert [prompt.kind for prompt in BUILT_IN] == [kind for kind in KINDS for _ in range(2)]
    every = built_in()
    assert [prompt.kind for prompt in every] == [kind for kind in KINDS for _ in range(20)]
    assert len({prompt.text for prompt in every}) == 120


def test_a_plot_is_a_document_with_a_line_for_each_rule():
    text = plot("a < b", {"one & two": [(8, 2.0, 0.1), (16, 2.5, math.inf)], "three": [(8, 1.5, 0.0)]})
    root = ElementTree.fromstring(text)
    lines = [element for element in root.iter() if element.tag.endswith("polyline")]
    assert len(lines) == 2 and "nan" not in text and "inf" not in text
    assert plot("nothing", {}) == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "8,many"], "nodes"),
        (["--builders", "widest"], "best_first"),
        (["--verifiers", "typical"], "traversal"),
        (["--method", "wish"], "method"),
        (["--prompts", "/no/such/file"], "prompts"),
    ],
)
def test_flags_that_cannot_be_honoured(arguments, message):
    from draftproof.cli import main

    done = CliRunner().invoke(main, ["bench", "trees", *arguments])
    assert done.exit_code == 2 and message in done.output


def test_the_simulated_grid_is_written(tmp_path, monkeypatch):
    from draftproof.bench.simulation import budgets, tables
    from draftproof.bench.simulation.runs import Figure as Simulated
    from draftproof.cli import main

    def few():
        for nodes in (8, 16):
            for rule in ("tree, zeta 0", "tree, zeta 1"):
                yield Simulated("medium", rule, nodes, nodes / 4, 0.1, 100)

    monkeypatch.setattr(tables, "autoregressive_table", few)
    monkeypatch.setattr(tables, "factorised_table", few)
    monkeypatch.setattr(budgets, "budget_table", few)
    done = CliRunner().invoke(main, ["bench", "trees", "--simulate", "--out", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout.splitlines()[-1])
    assert document["simulated"] and len(document["figures"]) == 12
    assert json.loads((tmp_path / "trees.json").read_text())["figures"] == document["figures"]
    assert (tmp_path / "trees.md").read_text().startswith("| drafter | setting | rule |")
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == ["trees-1.svg", "trees-2.svg", "trees-3.svg"]


def test_a_figure_is_plain_data():
    figure = Figure("suffix", 1.0, 1.0, "tree", "keyed", 8, "all", 2.0, 0.1, 30.0, 8.0, 3)
    assert json.loads(json.dumps(figure.as_dict()))["tokens_per_pass"] == 2.0
