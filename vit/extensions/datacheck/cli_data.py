"""`vit data check`, `pack`, `index` and `vtab`: what is wrong in a data set; shards; VTAB-1k."""

import json
from argparse import Namespace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from vit.cli.arguments import OneLineParser, add_spreadsheet, share, whole_number
from vit.console import note, say, show
from vit.errors import UserError, shorten
from vit.extensions.evaluation.cli_frozen import add_model_arguments, load_frozen
from vit.writing import writable, write_text

if TYPE_CHECKING:
    from vit.extensions.datacheck.check import Finding, Pictures

DEFAULT = "dinov2_s14.lvd142m"
"""Weights of the features without --model, if they have been downloaded."""
SHOWN = 24
"""Findings of a kind on the page."""
EPILOG = """\
examples:
  vit data check my_photos/                                  what is wrong, and a page that shows it
  vit data check my_photos/ --model runs/my_photos-finetune  check labels by the features of a run
  vit data check my_photos/ --fix my_photos.csv              then: vit fit --data my_photos.csv

Nothing is moved or deleted."""

VTAB = "Layout of SOURCE, the tasks, and how their images are drawn: docs/vtab.md."


def run(args: list[str]) -> int:
    """Runs one of the four."""
    options = _parser().parse_args(args)
    return options.run(options)


def _check(options: Namespace) -> int:
    """Prints a row per kind of finding; writes all findings, a page and the corrected manifest."""
    out = writable(Path(options.out).expanduser(), "--out")
    fix = None if options.fix is None else Path(options.fix).expanduser()
    if fix is not None and fix.suffix != ".csv":
        raise UserError(f"--fix {fix}: the name must end in .csv")
    if fix is not None and fix.is_file() and fix.samefile(Path(options.source).expanduser()):
        raise UserError(f"--fix {fix} is the list that is checked; give the new one another name")
    if options.relabel is not None and fix is None:
        raise UserError("--relabel changes labels in the manifest of --fix OUT.csv; give that too")
    from vit.data.manifest import SEPARATOR
    from vit.extensions.datacheck.check import Pictures, write_findings, write_fixed

    pictures = Pictures(options.source, tree=options.labels == "tree", group=options.group)
    if fix is not None and isinstance(pictures.items[0], bytes):
        raise UserError("--fix lists files, and these are in shards; correct and pack the files")
    for text in pictures.splits.notes:
        note(text)
    barred = [name for name in pictures.classes if SEPARATOR in name or name != name.strip()]
    if fix is not None and barred:
        why = f"{SEPARATOR} separates labels, and blanks around them are cut off"
        raise UserError(f"--fix {fix} cannot list the class {barred[0]!r}: {why}; rename it")
    findings = _findings(pictures, options)
    kinds = {kind: list(members) for kind, members in groupby(findings, attrgetter("kind"))}
    table, page = out / "findings.csv", out / "findings.html"
    write_findings(table, pictures, findings, spreadsheet=options.spreadsheet)
    write_text(page, _page(pictures, options.source, kinds))
    lines = [str(table), str(page)]
    if fix is not None:
        lacking, changed = write_fixed(fix, pictures, findings, options.relabel)
        lines.append(f"{fix}: {lacking:,} images left out, {changed:,} labels changed")
    for text in sorted({f.detail for f in findings if "pip install" in f.detail})[:3]:
        note(text)  # these pictures are whole, and --fix would leave them out
    _show(kinds, lines, options.json)
    return 0


def _index(options: Namespace) -> int:
    """Writes the indices of shards that lack them, and prints how many."""
    from vit.extensions.sources.addresses import listed_shards
    from vit.extensions.sources.shards import make_indices

    shards = [shard for source in options.source for shard in listed_shards(source)]
    show(f"shards: {len(shards):,}, indexed now: {make_indices(shards):,}")
    return 0


def _pack(options: Namespace) -> int:
    """Writes shards; prints how many, and what to type next."""
    folder = writable(Path(options.folder).expanduser(), "FOLDER")
    from vit.extensions.sources.pack import pack

    shards = pack(options.source, folder, resize=options.resize)
    images = sum(len(shard.images) for shard in shards)
    show(f"{images:,} images, shards: {len(shards):,}\nnext: vit fit --data {quote(str(folder))}")
    return 0


def _vtab(options: Namespace) -> int:
    """Writes the tasks of which SOURCE has the files; prints which, and what to type next."""
    source, root = (Path(each).expanduser() for each in (options.source, options.folder))
    from vit.extensions.transfer.vtab import COVERED, draw, write_task

    if not source.is_dir():
        raise UserError(f"{source} is not a folder")
    lacking = []
    for name in COVERED:
        try:
            drawn = None if (root / name / "test.txt").exists() else draw(name, source)
        except (OSError, RuntimeError) as error:  # torchvision's for files that are not there
            lacking.append(f"left out: {name}: {' '.join(str(error).split())}")
        else:
            if drawn is not None:
                write_task(name, drawn, writable(root, "ROOT") / name)
    if len(lacking) == len(COVERED):
        raise UserError(f"{source} has the files of no task; docs/vtab.md says where they lie")
    for text in lacking:
        note(text)
    show(f"{len(COVERED) - len(lacking)} tasks, next: vit transfer MODEL --data vtab={root}")
    return 0


def _parser() -> OneLineParser:
    parser = OneLineParser(prog="vit data", description="Checks data, and packs it into shards.")
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check",
        help="bad files, copies and leaks between splits, labels in doubt",
        description="Finds bad files, copies and leaks between splits, and labels in doubt.",
        epilog=EPILOG,
    )
    add = check.add_argument
    add("source", metavar="FOLDER|CSV", help="a folder, a CSV or Parquet file, or shards")
    add("--labels", choices=("plain", "tree"), default="plain", help="see vit fit --data.labels")
    add("--group", metavar="NAME", help="see vit fit --data.columns.group")
    add("--out", default="data_check", metavar="DIR", help="default: data_check")
    add_spreadsheet(add)
    add("--fix", metavar="OUT.csv", help="write a manifest without these images")
    add("--relabel", type=share, metavar="P", help="and relabel images at a probability >= P")
    add_model_arguments(check, "--model")
    check.set_defaults(on_error="error", run=_check)
    pack = commands.add_parser("pack", help="write images as tar shards")
    pack.add_argument("source", metavar="FOLDER|CSV", help="images, as for `vit fit --data`")
    pack.add_argument("folder", metavar="DIR", help="a new folder, or one of an interrupted pack")
    pack.set_defaults(run=_pack)
    text = "reduce the shorter side of larger images to N pixels, such as 512"
    pack.add_argument("--resize", type=whole_number, metavar="N", help=text)
    vtab = commands.add_parser("vtab", help="write tasks of VTAB-1k from local files", epilog=VTAB)
    vtab.add_argument("source", metavar="SOURCE", help="data sets in torchvision's layout")
    vtab.add_argument("folder", metavar="ROOT", help="a new folder, or one of an interrupted call")
    vtab.set_defaults(run=_vtab)
    index = commands.add_parser("index", help="write an index beside each tar shard")
    index.set_defaults(run=_index)
    index.add_argument("source", nargs="+", metavar="SHARDS", help="a quoted pattern, or a folder")
    return parser


def _findings(pictures: "Pictures", options: Namespace) -> list["Finding"]:
    """Findings, the worst kinds first."""
    import numpy as np

    from vit.extensions.datacheck.check import KINDS, file_findings
    from vit.extensions.datacheck.copies import copy_findings, feature_pairs, hash_pairs

    if options.model is None and _downloaded(DEFAULT):
        options.model = DEFAULT
    frozen = None if options.model is None else load_frozen(options, "pre_logits")
    say(f"{options.source}: {pictures.splits.summary(seed=0)}")
    pictures.read(options.num_workers)
    findings, pairs = list(file_findings(pictures)), hash_pairs(pictures)
    if frozen is None or not pictures.opened.any():
        note("--model (a run, weights or a name) checks labels, and finds cropped copies too")
        findings += copy_findings(pictures, pairs)
    else:
        from vit.extensions.datacheck.doubt import doubts, features_of

        features, images = features_of(frozen, options.source, pictures)
        pairs = np.concatenate([pairs, feature_pairs(pictures, features, images)])
        copies = list(copy_findings(pictures, pairs))
        left_out = {copy.image for copy in copies}
        once = np.array([image not in left_out for image in images.tolist()])
        findings += [*copies, *doubts(pictures, features[once], images[once])]
    return sorted(findings, key=lambda finding: list(KINDS).index(finding.kind))


def _downloaded(name: str) -> bool:
    from vit.extensions.formats.published import find

    return find(name).place().is_file()


def _page(pictures: "Pictures", source: str, kinds: dict[str, list["Finding"]]) -> str:
    from vit.extensions.datacheck.check import KINDS
    from vit.extensions.reports.page import page

    about = {"name": Path(source).resolve().name, "about": pictures.splits.summary(seed=0)}
    content = {"pictures": pictures, "kinds": kinds, "explained": KINDS, "shown": SHOWN}
    return page("datacheck/findings.html", kind="data check", **about, **content)


def _show(kinds: dict[str, list["Finding"]], lines: list[str], as_json: bool) -> None:
    from vit.extensions.datacheck.check import KINDS

    rows = [
        (kind, *KINDS[kind], len(findings), findings[0].subject) for kind, findings in kinds.items()
    ]
    if as_json:
        names = ("kind", "finding", "advice", "count", "example")
        table = [dict(zip(names, row, strict=True)) for row in rows]
        print(json.dumps({"findings": table, "files": lines}, indent=2, ensure_ascii=False))
        return
    if not rows:
        show("nothing was found")
    for _, title, advice, count, example in rows:
        show(f"{count:7,}  {title:33} {shorten(example, 34):35} {advice}")
    show("\n".join(lines))
