"""The pages build without a warning and load nothing from other hosts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"""(?:<script[^>]*\bsrc|<link[^>]*\bhref|<img[^>]*\bsrc)=["']?(https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_built(site: Path) -> None:
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"}
    assert {page.parent.name for page in site.glob("*/index.html")} >= pages
    assert (site / "index.html").is_file()


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    assert LOADED.search("<script async src='https://example.org/a.js'>")
    found = {page: LOADED.findall(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}
    assert {page: hosts for page, hosts in found.items() if hosts} == {}
