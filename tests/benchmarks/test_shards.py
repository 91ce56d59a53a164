"""benchmarks/speed/shards.py: its server, and its table on a page."""

import os
import urllib.request
from pathlib import Path

from benchmarks.speed import shards


def test_the_server_gives_files_and_parts_of_them(tmp_path: Path) -> None:
    content = os.urandom(100_000)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.tar").write_bytes(content)
    with shards.served(tmp_path) as address:
        for asked, part in (
            ("", content),
            ("bytes=10-19", content[10:20]),
            ("bytes=99990-", content[-10:]),
        ):
            request = urllib.request.Request(f"{address}/a/1.tar", headers={"Range": asked})
            with urllib.request.urlopen(request) as answer:
                assert answer.read() == part and answer.status == (206 if asked else 200)
