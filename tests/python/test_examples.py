"""Every example for Python runs, and says what it should."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted((EXAMPLES / "python").glob("*.py"))


def test_the_examples_are_there():
    assert {script.stem for script in SCRIPTS} == {
        "sdpa", "varlen_training", "kvcache_generate", "transformers_generate", "gemma4_layers"}
    for script in SCRIPTS:
        assert len(script.read_text().splitlines()) <= (75 if script.stem == "gemma4_layers" else 60)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_example(script):
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True,
                         env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout


@pytest.mark.parametrize("path", sorted((EXAMPLES / "notebooks").glob("*.ipynb")),
                         ids=lambda path: path.stem)
def test_notebook(path):
    """Its cells in order, in one namespace; the plot is drawn, no output is stored in the file."""
    import matplotlib

    matplotlib.use("Agg")
    notebook = json.loads(path.read_text())
    names = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            exec(compile("".join(cell["source"]), f"{path.name}", "exec"), names)
    measured = [row[2] for row in names["rows"]]
    assert len(measured) == len(names["lengths"]) and min(measured) > 0
    (axes,) = names["figure"].axes
    assert [line.get_label() for line in axes.get_lines()] == ["predicted", "roofline", "measured"]
