"""What commands print with --json is described by schemas in docs/json; the fixture `vit` checks
that in every test."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.command import SCHEMAS, TINY, Vit, photos, schema, vit
from vit.tables import rows

__all__ = ["photos", "vit"]


def test_each_command_with_json_has_a_schema(vit: Vit) -> None:
    commands = [name for name in rows("commands") if "--json" in vit(name, "--help").out]
    if "--json" in vit("data", "check", "--help").out:
        commands.append("data_check")
    files = {file.name.removesuffix(".schema.json") for file in SCHEMAS.iterdir()}
    assert files == {*commands} and len(files) > 20
    page = (SCHEMAS.parent / "runs.md").read_text(encoding="utf-8")
    for name in files:
        jsonschema.Draft202012Validator.check_schema(schema(name).schema)
        assert f"json/{name}.schema.json" in page


@pytest.fixture
def run(vit: Vit, photos: Path) -> dict[str, Any]:
    """Command -> what it has printed of a run."""
    options = ("--model.pretrained=null", "--trainer.max_steps=1", "--data.root", photos)
    options = (*options, "--data.splits.val_fraction=0.2")
    printed = {"fit": vit("fit", "-c", "finetune", *TINY, *options, "--run_dir=runs/a", "--json")}
    for command in ("validate", "test", "predict", "runs"):
        target = "runs" if command == "runs" else "runs/a"
        printed[command] = vit(command, target, "--json")
    image = photos / "red" / "00.jpg"
    printed |= {
        "classify": vit("classify", "runs/a", image, "--json"),
        "knn": vit("knn", "runs/a", "--data", photos, "--json"),
        "convert": vit("convert", "runs/a", "other", "--to", "native", "--json"),
        "compare": vit("compare", "vit_ti16", "--json"),
        "recipes": vit("recipes", "--json"),
        "models": vit("models", "--weights", "--json"),
    }
    assert not [done.err for done in printed.values() if done.status]
    return {name: json.loads(done.out) for name, done in printed.items()}


def test_the_output_of_a_run_is_as_described_and_another_is_not(run: dict[str, Any]) -> None:
    for name, content in run.items():
        schema(name).validate(content)
        part = content[0] if isinstance(content, list) else content
        for wrong in (
            {**part, "unknown_key": []}
            if name not in ("fit", "models", "classify")
            else {"top": 1, "finished": 1},
            dict.fromkeys(part, ()),
        ):
            whole = [wrong] if isinstance(content, list) else wrong
            assert not schema(name).is_valid(json.loads(json.dumps(whole))), name
