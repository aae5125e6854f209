"""Makes rows of tokens from the text section of a spec: tokenised once, laid out, and memory-mapped by every rank."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS, AllowedRoots
from trainyard.contract.formats.examples import CODE_VERSION
from trainyard.contract.spec.text_data import TextData, TextMixture, evaluation_set
from trainyard.contract.spec.text_sources import FileSource, TextSource
from trainyard.contract.wire.data_accounts import DataAccount
from worker.data.account import notices_of, template_notices
from worker.data.bad_records import NamedRecord, skipped_text, too_many_bad
from worker.data.build_tokens import ENDS, TARGETS, BadLines, build_tokens
from worker.data.content_digest import ContentDigests
from worker.data.cut_examples import CutExamples
from worker.data.data_files import DataFile, find_files
from worker.data.mixture import mixture_of
from worker.data.notices import Notice
from worker.data.read_limit import ReadLimit, raise_refusals, refused_later
from worker.data.row_layout import LAYOUT_VERSION, cut_examples, held_out_examples, lay_out
from worker.data.source_account import account_of, template_facts
from worker.data.stored_rows import StoredExamples, StoredPart, StoredRows, write_layout
from worker.data.token_cache import CacheEntry, TokenCache
from worker.data.tokenizers import Tokenizer

Which = Literal["all", "train", "held_out"]
_FACTS_VERSION = 3
"""Changes when other facts are stated about the same tokens."""


@dataclass(frozen=True)
class PreparedPart:
    """The rows of a source, by the folders of their entries."""

    tokens: str
    layout: str
    rows: int
    name: str | None = None
    """Evaluation set name (`""` if unnamed); None for training rows."""


@dataclass(frozen=True)
class PreparedText:
    """The files that the first rank prepared and all ranks open."""

    parts: list[PreparedPart]
    notices: list[Notice] = field(default_factory=list)

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "PreparedText":
        document = json.loads(text)
        notices = [Notice(**notice) for notice in document["notices"]]
        return cls([PreparedPart(**part) for part in document["parts"]], notices)


class TextPreparation:
    """Finds the files of a section, and makes sure that the cache has their tokens and rows."""

    def __init__(
        self,
        data: TextData,
        tokenizer: Tokenizer,
        length: int,
        cache: TokenCache,
        roots: AllowedRoots = UNRESTRICTED_ROOTS,
        limit: ReadLimit | None = None,
    ) -> None:
        """
        Args:
            length: Tokens of a row at most.
            limit: The limit for reading each source; no other preparation uses the tokens then. None: read everything.
        """
        self._data = data
        self._tokenizer = tokenizer
        self._length = length
        self._cache = cache
        self._roots = roots
        self._limit = limit
        self._digests = ContentDigests(cache.root / "digests", cache.on_progress)
        self._notices: list[Notice] = []
        self.accounts: list[DataAccount] = []
        """The accounts of the prepared sources."""

    def prepare(self) -> PreparedText:
        """Tokenise and lay out the sources that the cache does not have.

        Raises:
            RefusedError: A file or one of its examples is invalid, or a source has no example.
        """
        training: list[PreparedPart] = []
        held_out: list[PreparedPart] = []
        fraction = self._data.eval_fraction
        names = self._data.names if isinstance(self._data, TextMixture) else ("",)
        for name, (section, source) in zip(names, self._data.training_sources.items(), strict=True):
            with refused_later(self._limit):
                parts = self._parts(section, source, {"train": None, "held_out": name} if fraction else {"all": None})
                training.append(parts[0])
                held_out += parts[1:]
        for section, source in self._data.evaluation_sources.items():
            with refused_later(self._limit):
                held_out += self._parts(section, source, {"all": evaluation_set(section)})
        raise_refusals(self._limit)
        if mixture := mixture_of(self._data, [part.rows for part in training]):
            self._notices.append(mixture.notice())
        return PreparedText(training + held_out, self._notices)

    def _parts(self, section: str, source: TextSource, names: Mapping[Which, str | None]) -> list[PreparedPart]:
        """Return the rows of a source. `names`: of the evaluation sets, by which examples they have."""
        entry = self._tokens(section, source)
        layouts = {which: self._layout(entry, which) for which in names}
        rows = {which: layout.facts["rows"] for which, layout in layouts.items()}
        self.accounts.append(
            account_of(
                section,
                entry.facts,
                template_facts(self._tokenizer) if _writes_chats(entry) else None,
                self._length,
                cut=[CutExamples(**layout.facts["cut"]) for layout in layouts.values()],
                rows=rows.get("all", 0) + rows.get("train", 0),
                held_out_rows=rows.get("held_out", 0),
            )
        )
        return [self._part(section, entry, layouts[which], which, name) for which, name in names.items()]

    def _tokens(self, section: str, source: TextSource) -> CacheEntry:
        assert isinstance(source, FileSource), "uploaded files have been located"
        files = find_files(section, source, self._roots)
        bad_lines = BadLines(self._data.max_bad_lines if self._data.on_bad_line == "skip" else 0)
        entry = self._cache.entry_or_build(
            self._token_key(files, source),
            lambda folder: build_tokens(
                folder,
                files,
                source,
                self._tokenizer,
                bad_lines,
                self._cache.on_progress,
                self._limit.of_source() if self._limit else None,
            ),
        )
        self._check_bad_lines(section, entry.facts, bad_lines)
        chats = _writes_chats(entry)
        self._notices += template_notices(section, self._tokenizer, chats=chats)
        self._notices += notices_of(section, entry.facts["counts"])
        return entry

    def _token_key(self, files: list[DataFile], source: TextSource) -> str:
        # Differs from the plain digest of the files, which others may know.
        parts = {
            "version": [CODE_VERSION, _FACTS_VERSION],
            "tokenizer": self._tokenizer.identity(),
            "format": source.format,
            "columns": sorted(source.columns.items()),
            # The cache of a limited preparation is its own, and files that are not read have no digest.
            "files": [(file.kind, file.path if self._limit else self._digests.of(file)) for file in files],
        }
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _layout(self, entry: CacheEntry, which: Which) -> CacheEntry:
        settings = {
            "version": LAYOUT_VERSION,
            "tokens": entry.path.name,
            "digests": sorted(entry.digests.items()),
            "length": self._length,
            "packing": self._data.packing,
            "which": which,
            "fraction": self._data.eval_fraction if which != "all" else 0,
        }
        key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()
        return self._cache.entry_or_build(key, lambda folder: self._build_layout(folder, entry, which))

    def _part(
        self, section: str, entry: CacheEntry, layout: CacheEntry, which: Which, name: str | None
    ) -> PreparedPart:
        rows, cut = layout.facts["rows"], CutExamples(**layout.facts["cut"])
        if not rows:
            suffix = {"all": "", "train": " that is not held out", "held_out": " among those held out"}[which]
            raise cut.refusal(section, _paths(section, self._data), self._length, suffix)
        self._notices += cut.notices(section, self._length)
        return PreparedPart(str(entry.path), str(layout.path), rows, name)

    def _build_layout(self, folder: Path, entry: CacheEntry, which: Which) -> dict[str, Any]:
        ends = entry.array(ENDS, "<i8")
        split = entry.facts["format"] == "text"
        chosen = np.ones(len(ends), dtype=np.bool_)
        if which != "all":
            chosen = held_out_examples(len(ends), self._data.eval_fraction) == (which == "held_out")
        layout = lay_out(
            ends, entry.array(TARGETS, "<u1"), self._length, split=split, packed=self._data.packing, chosen=chosen
        )
        write_layout(folder, layout)
        cut = cut_examples(ends, chosen, layout.starts, None if split else self._length)
        return {"rows": len(layout.ends), "cut": cut.facts()}

    def _check_bad_lines(self, section: str, facts: Mapping[str, Any], bad_lines: BadLines) -> None:
        """Raise RefusedError if the entry, which may be of a job that skipped more, has too many bad lines."""
        named = [NamedRecord(**record) for record in facts["named"]]
        if facts["bad"] > bad_lines.limit:
            raise too_many_bad(section, named, bad_lines.limit, facts["bad"], facts["records"])
        if named:
            places = [{"file": one.file, one.unit: one.number, "problem": one.problem} for one in named]
            data = {"skipped": facts["bad"], "first": places}
            message = skipped_text(section, facts["bad"], named)
            self._notices.append(Notice("bad_lines_skipped", message, "warning", data))


def _writes_chats(entry: CacheEntry) -> bool:
    """Return whether a chat template wrote the examples."""
    return bool(entry.facts["counts"].get("answers", 0))


def open_examples(prepared: PreparedText, data: TextData, cache: TokenCache) -> StoredExamples:
    """Return the examples that were prepared, memory-mapped."""
    entries: dict[str, CacheEntry] = {}

    def entry(path: str) -> CacheEntry:
        return entries.setdefault(path, CacheEntry.load(Path(path)))

    stored = [StoredPart(entry(part.tokens), entry(part.layout)) for part in prepared.parts]
    training = [part for part in prepared.parts if part.name is None]
    held_out = [part for part in prepared.parts if part.name is not None]
    digests = "\n".join(part.digest for part in stored[: len(training)])
    rows = [part.rows for part in training]
    return StoredExamples(
        (),
        sum(rows),
        sum(part.rows for part in held_out),
        held_out_sets={part.name: part.rows for part in held_out if part.name},
        rows=StoredRows(stored, cache),
        packed=data.packing,
        digest=hashlib.sha256(digests.encode()).hexdigest(),
        mixture=mixture_of(data, rows),
    )


def _paths(section: str, data: TextData) -> str:
    source = {**data.training_sources, **data.evaluation_sources}[section]
    assert isinstance(source, FileSource)
    return source.path if isinstance(source.path, str) else ", ".join(source.path)


Share = Callable[[Callable[[], str]], str]
"""Computes a text on one rank and returns it on all."""


@dataclass(frozen=True)
class DataAccess:
    """The folders that data may come from, the cache of tokens, and the division of the work between ranks."""

    roots: AllowedRoots = UNRESTRICTED_ROOTS
    """The roots below which files may be."""
    cache: TokenCache | None = None
    """The cache that stores tokens. None: a temporary folder."""
    share: Share = lambda compute: compute()
    """Lets one rank prepare files that all ranks open."""
    on_progress: Callable[[], None] = lambda: None
    """Called now and then, so that the watchdog does not take long files for a stall."""
    limit: ReadLimit | None = None
    """The limit for reading each source of texts. None: read everything."""
    on_account: Callable[[DataAccount], None] = lambda account: None
    """Called with the account of each source."""


DIRECT = DataAccess()
"""The only rank reads all data."""


def load_examples(
    data: TextData, tokenizer: Tokenizer, length: int, access: DataAccess = DIRECT
) -> tuple[StoredExamples, list[Notice]]:
    """Return the rows of a section, each of at most `length` tokens, and notices for the user.

    The rows depend on the files and the spec alone.

    Raises:
        RefusedError: A file or an example is invalid, or a link leads out of the roots. The message names the line, and
            never quotes it.
    """
    cache = access.cache or TokenCache(on_progress=access.on_progress)
    preparation = TextPreparation(data, tokenizer, length, cache, access.roots, access.limit)
    try:
        prepared = PreparedText.parse(access.share(lambda: preparation.prepare().dump()))
    finally:
        # Only the rank that prepares has accounts. A refused source has an account, too.
        for account in preparation.accounts:
            access.on_account(account)
    return open_examples(prepared, data, cache), prepared.notices
