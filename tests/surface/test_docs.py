"""The pages are true to the tree: links and paths resolve, the generated page is fresh, where-is.md is complete."""

import re
from pathlib import Path

import click
import pytest

from tools import gen_cli_docs

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")])
FOLDERS = ("benchmarks/", "docs/", "examples/", "src/", "tests/", "tools/")


def named_paths(text: str) -> list[str]:
    """Repository paths given in backticks: they start with one of FOLDERS, and may be patterns."""
    spans = re.findall(r"`([^`\s]+)`", text)
    return [span for span in spans if span.startswith(FOLDERS) and "<" not in span]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_named_path_exists(page: Path) -> None:
    missing = [path for path in named_paths(page.read_text(encoding="utf-8")) if not any(REPOSITORY.glob(path))]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_resolves(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_the_path_check_finds_paths() -> None:
    assert named_paths("see `src/draftproof/core.py`, `src/<op>/x.py` and `pip`") == ["src/draftproof/core.py"]


def test_the_command_line_page_is_fresh() -> None:
    written = gen_cli_docs.PAGE.read_text(encoding="utf-8")
    assert written == gen_cli_docs.page(), "docs/cli.md is stale; run `make docs`"


def test_the_command_line_page_shows_every_visible_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    root = click.Group("root", help="All of it.")
    inner = click.Group("inner")
    root.add_command(inner)
    root.add_command(click.Command("secret", hidden=True))
    option = click.Option(["--deep"], help="Says how deep, in words that take more than one line of a narrow page.")
    inner.add_command(click.Command("leaf", params=[option]))
    text = gen_cli_docs.page(root)
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "draftproof",
        "draftproof inner",
        "draftproof inner leaf",
    ]
    assert "--deep" in text and "secret" not in text
    monkeypatch.setenv("COLUMNS", "40")
    assert gen_cli_docs.page(root) == text


def test_where_is_answers_with_exactly_one_file_each() -> None:
    rows = re.findall(r"^\| ([^|]+\?) \| ([^|]+) \| ([^|]+) \|$", read("docs/where-is.md"), re.MULTILINE)
    assert len(rows) >= 20
    assert [question for question, _, file in rows if len(named_paths(file)) != 1] == []


@pytest.mark.parametrize(
    "question",
    [
        "In which order are the filters applied?",
        "What happens to ties?",
        "When is a draft accepted?",
        "EOS inside an accepted run?",
        "Which random number goes where?",
        "Which mistakes is the proof shown to catch?",
    ],
)
def test_the_questions_that_a_newcomer_asks_are_there(question: str) -> None:
    assert f"| {question} |" in read("docs/where-is.md")


def test_the_file_tree_of_the_readme_names_every_module() -> None:
    tree = re.search(r"```text\nsrc/draftproof/\n(.*?)```", read("README.md"), re.DOTALL)
    assert tree is not None
    shown = set(re.findall(r"^ {4}(\w+(?:/|\.py))", tree.group(1), re.MULTILINE))
    package = REPOSITORY / "src" / "draftproof"
    present = {path.name for path in package.glob("*.py")}
    present |= {f"{path.name}/" for path in package.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert shown == present


def read(path: str) -> str:
    return (REPOSITORY / path).read_text(encoding="utf-8")
