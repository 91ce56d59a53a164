"""The files in configs/launch: bash and Kubernetes read them, and start a command that is ours."""

import json
import os
import re
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml
from torch.distributed.run import get_args_parser

from vit.cli.main import main
from vit.recipes import recipe_folder
from vit.runs.options import Options

LAUNCH = recipe_folder() / "launch"
SLURM = {"CPUS_PER_TASK": "8", "JOB_NUM_NODES": "2", "NTASKS_PER_NODE": "4", "JOB_ID": "7"}
SETTINGS = {"HOST": "head", "NODES": "2", "GPUS": "4"} | {f"SLURM_{k}": v for k, v in SLURM.items()}


def launched(
    file: Path, tools: Path, *words: object, status: int = 0
) -> subprocess.CompletedProcess[str]:
    """The file run where srun ends with `status`, and every tool writes its words to TOOL.log."""
    for name in ("srun", "scontrol", "torchrun"):
        (tools / name).write_text(
            f'#!/bin/bash\nprintf "%s\\n" "$@" > {tools}/{name}.log\n'
            f"exit {0 if name == 'scontrol' else status}\n"
        )
        (tools / name).chmod(0o755)
    environment = {**SETTINGS, "PATH": f"{tools}:{os.environ['PATH']}"}
    command = ["bash", str(file), *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


SCHEMAS = Path(__file__).with_name("kubernetes.json")
"""Job and Service of the API of Kubernetes 1.37 (Apache-2.0), without descriptions; unknown fields
are refused."""


@pytest.mark.parametrize("file", sorted(LAUNCH.glob("*.s*")), ids=lambda file: file.name)
def test_a_launch_file_starts_processes_of_a_run(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert subprocess.run(["bash", "-n", file]).returncode == 0
    typed = ["--data", tmp_path, "--trainer.strategy", "fsdp2"]
    done = launched(file, tmp_path, "cifar10", "a run", *typed)
    assert (done.returncode, done.stderr) == (0, "")
    tool = "srun" if file.suffix == ".sbatch" else "torchrun"
    words = (tmp_path / f"{tool}.log").read_text().splitlines()
    ours = words[words.index("fit") + 1 :]
    config = Options([*ours, "--trainer.accelerator", "cpu"]).config
    trainer = config.trainer
    assert (config.run_dir, config.data.root) == ("a run", str(tmp_path))
    assert (trainer.num_nodes, trainer.devices, trainer.strategy) == (2, "4", "fsdp2")
    few = launched(file, tmp_path, "cifar10")
    assert few.returncode == 2 and few.stderr.startswith("usage: ")
    assert main(["recipes", f"launch/{file.name}"]) == 0
    assert capsys.readouterr().out == file.read_text()


@pytest.mark.parametrize(("status", "again"), [(0, ""), (1, ""), (138, "requeue\n7\n")])
def test_a_job_that_was_stopped_before_its_limit_is_queued_again(
    status: int, again: str, tmp_path: Path
) -> None:
    done = launched(LAUNCH / "fit.sbatch", tmp_path, "cifar10", "a run", status=status)
    assert (done.returncode, done.stderr) == (status, "")
    words = (tmp_path / "srun.log").read_text().splitlines()
    assert words[:3] == ["--kill-on-bad-exit=1", "--cpus-per-task=8", "vit"]
    asked = tmp_path / "scontrol.log"
    assert (asked.read_text() if asked.exists() else "") == again


def test_the_pods_of_a_job_meet_at_the_first_and_start_a_run(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = LAUNCH / "job.yml"
    service, job = yaml.safe_load_all(file.read_text())
    schemas = json.loads(SCHEMAS.read_text())
    for item in (service, job):
        jsonschema.validate(item, {**schemas, "$ref": f"#/$defs/{item['kind']}"})
    with pytest.raises(jsonschema.ValidationError, match="completionsMode"):
        odd = job | {"spec": job["spec"] | {"completionsMode": "Indexed"}}
        jsonschema.validate(odd, {**schemas, "$ref": "#/$defs/Job"})
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    container = pod["containers"][0]
    name, port = service["metadata"]["name"], service["spec"]["ports"][0]["port"]
    assert pod["subdomain"] == name and service["spec"]["clusterIP"] == "None"
    first = f"{job['metadata']['name']}-0.{name}"  # a pod's host name is JOB-INDEX
    assert list(service["spec"]["selector"].values()) == [job["metadata"]["name"]]
    tool, *words = container["command"]
    ours = words.index("fit")
    pods, gpus = spec["completions"], container["resources"]["limits"]["nvidia.com/gpu"]
    assert tool == "torchrun" and spec["parallelism"] == pods
    parsed = get_args_parser().parse_args(words[: ours + 1])
    assert (parsed.nnodes, parsed.nproc_per_node) == (str(pods), str(gpus))
    assert (parsed.master_addr, parsed.master_port) == (first, port)
    assert (parsed.module, parsed.training_script) == (True, "vit")
    typed = [word.replace("/data/images", str(tmp_path)) for word in words[ours + 1 :]]
    config = Options([*typed, "--trainer.accelerator", "cpu"]).config
    assert (config.trainer.num_nodes, config.trainer.devices) == (pods, str(gpus))
    assert main(["recipes", "launch/job.yml"]) == 0
    assert capsys.readouterr().out == file.read_text()


def test_the_commands_of_the_page_are_ours(tmp_path: Path) -> None:
    page = (LAUNCH.parents[1] / "docs" / "scaling.md").read_text()
    lines = re.findall(r"^vit fit (.*)", page.replace("\\\n", " "), flags=re.MULTILINE)
    assert len(lines) >= 2
    for line in lines:
        words = line.partition("#")[0].replace("FOLDER", str(tmp_path)).split()
        assert Options([*words, "--trainer.accelerator", "cpu"]).config.trainer.devices
