"""Imports go one way (tools/import_direction.py), and the checker itself catches planted violations."""

from pathlib import Path

import pytest

from tools import import_direction

REPOSITORY = Path(__file__).parents[2]


def plant(folder: Path, files: dict[str, str]) -> Path:
    """A fake package with one file per module of the order, and `files` on top."""
    package = folder / "draftproof"
    legal = {
        "__init__.py": "from draftproof.llm import LLM\n",
        "core.py": "import math\nfrom draftproof import errors\n",
        "errors.py": "",
        "noise.py": "import numpy\n",
        "sampling/__init__.py": "from .chain import laws\n",
        "sampling/chain.py": "from ..core import Law\nfrom . import top_k\n",
        "sampling/top_k.py": "",
        "verify/keyed.py": "from draftproof.sampling.chain import laws\nimport draftproof.noise\n",
        "drafters/draft_model.py": "from draftproof.targets.base import Target\n",
        "drafters/__init__.py": "from draftproof.targets.load import load_target\n",
        "targets/base.py": "from draftproof import __version__\n",
        "targets/load.py": "",
        "targets/toy.py": "from draftproof.core import Law\n",
        "engine/step.py": "from draftproof import verify\nfrom draftproof.targets.hf import HFTarget\n",
        "llm.py": "from draftproof.engine.step import step\n",
        "cli/__init__.py": "from draftproof import LLM\n",
    }
    for name, text in {**legal, **files}.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return package


def test_the_package_keeps_the_direction() -> None:
    folder = REPOSITORY / "src" / "draftproof"
    assert (folder / "core.py").is_file()
    assert [str(violation) for violation in import_direction.check(folder)] == []


def test_a_legal_tree_has_no_violation(tmp_path: Path) -> None:
    assert import_direction.check(plant(tmp_path, {})) == []


@pytest.mark.parametrize(
    ("file", "text", "imported"),
    [
        ("core.py", "import draftproof.sampling.chain\n", "sampling.chain"),
        ("core.py", "def late():\n    from draftproof import engine\n", "engine"),
        ("params.py", "from .llm import LLM\n", "llm"),
        ("config.py", "from draftproof.verify.keyed import keyed\n", "verify.keyed"),
        ("noise.py", "from draftproof.kernels import philox\n", "kernels"),
        ("sampling/chain.py", "from ..verify import keyed\n", "verify.keyed"),
        ("sampling/chain.py", "from draftproof import LLM\n", "draftproof"),
        ("verify/keyed.py", "if TYPE_CHECKING:\n    from draftproof.drafters import ngram\n", "drafters"),
        ("verify/keyed.py", "import importlib\nimportlib.import_module('draftproof.targets.hf')\n", "targets.hf"),
        ("drafters/ngram.py", "from draftproof.targets import hf\n", "targets"),
        ("drafters/ngram.py", "from draftproof.kernels import gather\n", "kernels"),
        ("targets/toy.py", "from draftproof.drafters.ngram import NGram\n", "drafters.ngram"),
        ("targets/toy.py", "from draftproof.engine.step import step\n", "engine.step"),
        ("engine/step.py", "from ..llm import LLM\n", "llm"),
        ("engine/step.py", "from ..audit.plan import ALPHA\n", "audit.plan"),
        ("engine/step.py", "from draftproof.outputs import RequestOutput\n", "outputs"),
        ("outputs.py", "from draftproof.llm import LLM\n", "llm"),
        ("llm.py", "from draftproof.cli import main\n", "cli"),
        ("serve/app.py", "from draftproof.cli import main\n", "cli"),
        ("bench/run.py", "from draftproof.train import loop\n", "train"),
        ("kernels/gather.py", "from draftproof.sampling import chain\n", "sampling.chain"),
        ("audit/plan.py", "from draftproof.engine.step import step\n", "engine.step"),
        ("audit/plan.py", "from draftproof.targets import base\n", "targets.base"),
        ("audit/plan.py", "from draftproof.core import Law\n", "core"),
        ("misc.py", "", "misc"),
    ],
)
def test_a_planted_violation_is_caught(tmp_path: Path, file: str, text: str, imported: str) -> None:
    violations = import_direction.check(plant(tmp_path, {file: text}))
    assert [(violation.importer, violation.imported) for violation in violations] == [(f"draftproof/{file}", imported)]


@pytest.mark.parametrize("text", ["from draftproof import LLM\n", "from draftproof.targets.toy import Table\n"])
def test_what_the_audit_may_see(tmp_path: Path, text: str) -> None:
    assert import_direction.check(plant(tmp_path, {"audit/plan.py": text})) == []


def test_the_command_reports_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    legal, illegal = (
        plant(tmp_path / "legal", {}),
        plant(tmp_path / "illegal", {"core.py": "\nimport draftproof.llm\n"}),
    )
    assert import_direction.main([str(legal)]) == 0
    assert import_direction.main([str(illegal)]) == 1
    assert capsys.readouterr().out.startswith("draftproof/core.py:2: imports llm: core may import only ")
