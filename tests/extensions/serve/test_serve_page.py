"""docs/serve.md and docs/Dockerfile: what they say can be typed, and holds."""

import json
import re
import shlex
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser

import vit
from tests.command import coloured, saved
from tests.extensions.serve.serving import served
from vit.extensions.serve import cli_serve
from vit.extensions.serve.application import FILES

DOCS = Path(vit.__file__).parents[1] / "docs"
PAGE = (DOCS / "serve.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_options_are_those_of_the_command() -> None:
    known = set(cli_serve.parser()._option_string_actions) | {"--data-binary"}
    known |= {"--json", "--serve", "--data"}  # of `vit classify`, `vit bench`, `vit trust`
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) <= known
    for line in "".join(blocks("bash")).splitlines():
        if line.startswith("vit serve"):
            cli_serve.parser().parse_args(shlex.split(line)[2:])


def test_the_addresses_are_those_of_the_server() -> None:
    api = json.loads((Path(cli_serve.__file__).parent / "openapi.json").read_text())
    named = set(re.findall(r"^\| `(?:GET|POST) (/\S*?)`", PAGE, re.MULTILINE))
    assert named == {*api["paths"], "/openapi.json", "/"}
    assert all((Path(cli_serve.__file__).parent / name).is_file() for name in FILES)


def test_the_statuses_are_those_of_the_interface() -> None:
    api = json.loads((Path(cli_serve.__file__).parent / "openapi.json").read_text())
    answers = [a for path in api["paths"].values() for m in path.values() for a in m["responses"]]
    told = set(re.findall(r"^\| (?:404, )?(\d\d\d)\b", PAGE, re.MULTILINE)) | {"404"}
    assert set(answers) - {"200", "500"} <= told
    assert told - set(answers) == {"405"}  # of a method that is not described


def test_python_asks_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(Path("model"))
    (coloured(Path("photos")) / "red" / "00.jpg").rename("photo.jpg")
    [code] = blocks("python")
    with served(Path("model")) as client:
        exec(code.replace(":8000", f":{client.port}"), {})
        expected = client.ask(body=Path("photo.jpg").read_bytes()).json[0]["top"]
    assert capsys.readouterr().out.strip() == str(expected)


def test_the_container_runs_as_nobody(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_bytes((DOCS / "Dockerfile").read_bytes())
    parsed = DockerfileParser(str(tmp_path))
    steps = [step for step in parsed.structure if step["instruction"] != "COMMENT"]
    names = [step["instruction"] for step in steps]
    assert names[0] == "FROM" and names[-1] == "ENTRYPOINT" and len(steps) <= 12
    values = {step["instruction"]: step["value"] for step in steps}
    user = values["USER"].partition(":")[0]
    assert int(user) > 0 and names.count("USER") == 1
    assert all(name not in ("RUN", "COPY") for name in names[names.index("USER") :])
    command = json.loads(values["ENTRYPOINT"])
    options = cli_serve.parser().parse_args(command[2:])
    assert command[:2] == ["vit", "serve"] and options.host == "0.0.0.0"
    assert values["EXPOSE"] == str(options.port)
    assert options.model == values["COPY"].split()[-1]
    assert f":{options.port}/health" in values["HEALTHCHECK"]
    shown = [line.removeprefix("# ") for line in parsed.content.splitlines()[:2]]
    assert "\n".join(shown) in PAGE
