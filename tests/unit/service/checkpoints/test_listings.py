"""The pages of one listing read the folders once."""

from pathlib import Path

import pytest

from service.checkpoints import listings
from service.checkpoints.listings import FileListings
from service.core.untrusted_files import UntrustedFiles
from tests.support.world import FakeClock


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in "abcde":
        (tmp_path / name).write_text("")
    return tmp_path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were read."""
    made: list[Path] = []
    real = listings.list_files

    def counted(files: UntrustedFiles, folder: Path, *, hidden: bool) -> object:
        made.append(folder)
        return real(files, folder, hidden=hidden)

    monkeypatch.setattr(listings, "list_files", counted)
    return made


def pages(listing: FileListings, root: Path) -> list[list[str]]:
    made: list[list[str]] = []
    after: str | None = None
    more = True
    while more:
        files, more = listing.page(UntrustedFiles(root), root, hidden=False, limit=2, after=after)
        made.append([file.path for file in files])
        after = files[-1].path
    return made


def test_pages_of_one_listing_read_the_folder_once(root: Path, reads: list[Path]) -> None:
    assert pages(FileListings(), root) == [["a", "b"], ["c", "d"], ["e"]]
    assert len(reads) == 1


def test_first_page_reads_the_folder_anew(root: Path, reads: list[Path]) -> None:
    listing = FileListings()
    pages(listing, root)
    (root / "f").write_text("")
    assert pages(listing, root)[-1] == ["e", "f"]
    assert len(reads) == 2


def test_old_listing_is_read_anew(root: Path, reads: list[Path]) -> None:
    clock = FakeClock()
    listing = FileListings(lambda: clock.now.timestamp())
    listing.page(UntrustedFiles(root), root, hidden=False, limit=2, after=None)
    clock.advance(61)
    listing.page(UntrustedFiles(root), root, hidden=False, limit=2, after="b")
    assert len(reads) == 2


def test_number_of_listings_is_bounded(root: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listings, "_MAX_LISTINGS", 1)
    listing = FileListings()
    for hidden in (False, True):
        listing.page(UntrustedFiles(root), root, hidden=hidden, limit=2, after=None)
    listing.page(UntrustedFiles(root), root, hidden=True, limit=2, after="b")
    assert len(reads) == 2
    listing.page(UntrustedFiles(root), root, hidden=False, limit=2, after="b")
    assert len(reads) == 3
