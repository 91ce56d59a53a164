"""benchmarks/speed/shards.py: its server, and its table on a page."""

import os
import urllib.request
from pathlib import Path

from benchmarks.lib import harness
from benchmarks.speed import page, shards


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


def test_a_table_has_a_row_per_source() -> None:
    ratio = {"ratio": 0.9, "ratio_min": 0.8, "ratio_max": 1.0}
    row = {"images": "photos", "arm": "tar", "count": 1536, "images_per_second": 250.0}
    row |= {"of_limit": ratio, "over_peer": {"webdataset over http": ratio}}
    facts = {"rounds": 3, "latency": 0.005, "sizes": {"photos": 224}}
    text = "\n".join(page.shards(harness.document("shards", [row], **facts)))
    assert "| photos, 1,536 | tar | 250 | 0.90 (0.80-1.00) | 0.90 (0.80-1.00) |  |" in text
    assert "waits\n5 ms before each" in text and "224 pixels (photos)" in text
