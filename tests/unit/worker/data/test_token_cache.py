"""The cache of tokens: one build for the same content, and none that is incomplete, damaged or another account's."""

import json
import multiprocessing
import os
import signal
import time
from dataclasses import replace

import pytest

from trainyard.contract.layout import DATA_CACHE_ENTRY
from trainyard.contract.spec.text_data import TextFiles
from worker.core.errors import RefusedError
from worker.data import content_digest, text_examples, token_cache
from worker.data.text_examples import DataAccess, load_examples
from worker.data.token_cache import BUILDING, TokenCache, own_cache_folder
from worker.data.tokenizers import ByteTokenizer


class OtherTokenizer(ByteTokenizer):
    """Encodes everything in upper case."""

    def identity(self):
        return "other"

    def encode(self, texts):
        return super().encode([replace(one, text=one.text.upper()) for one in texts])


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data.jsonl").write_text("".join(f'{{"text": "text {n}"}}\n' for n in range(300)))
    return TextFiles(path=str(tmp_path / "data.jsonl"))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def builds(monkeypatch):
    """Count the builds of tokens."""
    counted = []
    build = text_examples.build_tokens

    def counting(*arguments):
        counted.append(arguments)
        return build(*arguments)

    monkeypatch.setattr(text_examples, "build_tokens", counting)
    return counted


def load(data, root, tokenizer=None, length=64):
    cache = TokenCache(root)
    examples, notices = load_examples(data, tokenizer or ByteTokenizer(), length, DataAccess(cache=cache))
    tokens = [segment.tokens.tolist() for row in range(len(examples.rows)) for segment in examples.rows.segments(row)]
    return tokens, examples, notices


def entries(root):
    return sorted(path.parent for path in root.glob(f"*/*/{DATA_CACHE_ENTRY}"))


def tokens_entry(root):
    return next(path for path in entries(root) if (path / "tokens").exists())


class TestReuse:
    def test_same_content_is_tokenised_once(self, data, root, builds):
        first, second = load(data, root), load(data, root)
        assert len(builds) == 1
        assert first[0] == second[0]
        assert first[1].digest == second[1].digest

    def test_copy_of_the_file_is_the_same_content(self, data, root, builds, tmp_path):
        load(data, root)
        (tmp_path / "copy").write_bytes((tmp_path / "data.jsonl").read_bytes())
        load(TextFiles(path=str(tmp_path / "copy")), root)
        assert len(builds) == 1

    @pytest.mark.parametrize("change", [{"packing": False}, {"eval_fraction": 0.1}, {"on_bad_line": "skip"}])
    def test_other_rows_use_the_same_tokens(self, data, root, builds, change):
        load(data, root)
        load(data.model_copy(update=change), root)
        load(data, root, length=32)
        assert len(builds) == 1

    @pytest.mark.parametrize("change", [{"format": "text"}, {"columns": {"text": "text"}}])
    def test_other_ways_of_reading_are_other_tokens(self, data, root, builds, change):
        load(data, root)
        load(data.model_copy(update=change), root)
        assert len(builds) == 2

    def test_changed_tokenizer_is_noticed(self, data, root, builds):
        first, second = load(data, root), load(data, root, OtherTokenizer())
        assert len(builds) == 2
        assert bytes(second[0][0]) == bytes(first[0][0]).upper()
        assert first[1].digest != second[1].digest

    def test_changed_file_is_noticed(self, data, root, builds, tmp_path):
        load(data, root)
        path = tmp_path / "data.jsonl"
        before = path.stat()
        path.write_text(path.read_text().replace("text 7", "text 8", 1))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        load(data, root)
        assert len(builds) == 2

    def test_notices_are_those_of_a_build(self, root, tmp_path, builds):
        (tmp_path / "bad").write_text('{"prompt": "a", "completion": "' + "b" * 99 + '"}\n{\n')
        data = TextFiles(path=str(tmp_path / "bad"), on_bad_line="skip")
        first, second = load(data, root)[2], load(data, root)[2]
        assert [notice.kind for notice in first] == ["bad_lines_skipped", "data_truncated"]
        assert first == second
        assert len(builds) == 1

    def test_entry_of_a_job_that_skipped_lines_is_refused_to_one_that_does_not(self, root, tmp_path):
        (tmp_path / "bad").write_text('{"text": "a"}\n{\n')
        load(TextFiles(path=str(tmp_path / "bad"), on_bad_line="skip"), root)
        with pytest.raises(RefusedError, match="bad, line 2 is not JSON"):
            load(TextFiles(path=str(tmp_path / "bad")), root)


class TestDigests:
    def test_content_of_a_settled_file_is_read_once(self, data, root, tmp_path, monkeypatch):
        reads = []
        digest = content_digest.digest_of_descriptor
        monkeypatch.setattr(
            content_digest, "digest_of_descriptor", lambda *arguments: reads.append(1) or digest(*arguments)
        )
        monkeypatch.setattr(content_digest, "_SETTLED_SECONDS", -1.0)
        load(data, root)
        load(data, root)
        assert len(reads) == 1

    def test_digest_of_a_file_that_was_just_written_is_not_remembered(self, data, root):
        load(data, root)
        assert not list((root / "digests").glob("*")) if (root / "digests").exists() else True

    def test_blocks_and_size_count(self, tmp_path, monkeypatch):
        monkeypatch.setattr(content_digest, "_BLOCK_BYTES", 4)

        def digest(content):
            (tmp_path / "x").write_bytes(content)
            with (tmp_path / "x").open("rb") as file:
                return content_digest.digest_of_descriptor(file.fileno(), len(content), lambda: None)

        contents = [b"", b"a", b"abcd", b"abcde", b"abcdabcd", b"abcdabce", b"abcdabcd\0"]
        assert len({digest(content) for content in contents}) == len(contents)


class TestDamage:
    @pytest.mark.parametrize("name", ["tokens", "targets", "ends"])
    @pytest.mark.parametrize("damage", ["truncate", "change", "remove", "lengthen"])
    def test_damaged_entry_is_built_again(self, data, root, builds, name, damage):
        expected, _, _ = load(data, root)
        path = tokens_entry(root) / name
        content = bytearray(path.read_bytes())
        path.chmod(0o600)
        if damage == "remove":
            path.unlink()
        else:
            content[len(content) // 2] ^= 1
            changed = {"truncate": content[:-1], "change": content, "lengthen": content + b"\0"}[damage]
            path.write_bytes(changed)
        assert load(data, root)[0] == expected
        assert len(builds) == 2
        assert load(data, root)[0] == expected
        assert len(builds) == 2

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"files": {}}', '{"files": {"tokens": 1}, "facts": {}}'])
    def test_damaged_record_of_an_entry_is_built_again(self, data, root, builds, content):
        load(data, root)
        (tokens_entry(root) / DATA_CACHE_ENTRY).write_text(content)
        load(data, root)
        assert len(builds) == 2

    def test_failed_build_leaves_nothing(self, root, tmp_path):
        (tmp_path / "bad").write_text('{"text": "a"}\n{\n')
        with pytest.raises(RefusedError):
            load(TextFiles(path=str(tmp_path / "bad")), root)
        assert entries(root) == []
        assert list(root.glob(f"{BUILDING}*")) == []

    def test_file_in_place_of_an_entry_by_a_link_is_not_read(self, data, root, builds, tmp_path):
        load(data, root)
        path = tokens_entry(root) / "tokens"
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        load(data, root)
        assert len(builds) == 2


def build_slowly(path, root, started, go, results):
    """Load in another process, and wait in the middle of the build."""
    build = text_examples.build_tokens

    def waiting(*arguments):
        facts = build(*arguments)
        started.put(os.getpid())
        go.wait(60)
        return facts

    text_examples.build_tokens = waiting
    tokens, examples, _ = load(TextFiles(path=path), root)
    results.put((tokens, examples.digest))


class TestRaces:
    @pytest.fixture
    def context(self):
        return multiprocessing.get_context("fork")

    def start(self, context, data, root):
        started, results, go = context.Queue(), context.Queue(), context.Event()
        process = context.Process(target=build_slowly, args=(data.path, root, started, go, results))
        process.start()
        started.get(timeout=60)
        return process, go, results

    def test_two_builders_at_once_have_the_same_valid_entry(self, data, root, context):
        builders = [self.start(context, data, root) for _ in range(2)]
        assert len(list(root.glob(f"{BUILDING}*"))) == 2
        for _, go, _ in builders:
            go.set()
        loaded = [results.get(timeout=60) for _, _, results in builders]
        for process, _, _ in builders:
            process.join(60)
            assert process.exitcode == 0
        assert loaded[0] == loaded[1]
        assert list(root.glob(f"{BUILDING}*")) == []
        assert len(entries(root)) == 2  # the tokens and the rows
        tokens, examples, _ = load(data, root)
        assert (tokens, examples.digest) == loaded[0]

    def test_killed_builder_leaves_no_entry_and_its_folder_is_removed_later(self, data, root, context, builds):
        process, _, _ = self.start(context, data, root)
        os.kill(process.pid, signal.SIGKILL)
        process.join(60)
        (left,) = root.glob(f"{BUILDING}*")
        assert entries(root) == []
        load(data, root)
        assert len(builds) == 1
        assert left.exists()
        old = time.time() - 2 * token_cache._ABANDONED_SECONDS
        for path in (*left.iterdir(), left):
            os.utime(path, (old, old))
        load(data, root, length=32)
        assert not left.exists()


class TestAge:
    def test_build_removes_entries_that_no_job_has_used(self, data, root, tmp_path, builds):
        load(data, root)
        for record in root.glob(f"*/*/{DATA_CACHE_ENTRY}"):
            old = time.time() - token_cache.UNUSED_SECONDS - 60
            os.utime(record, (old, old))
        (tmp_path / "other.jsonl").write_text('{"text": "other"}\n')
        load(TextFiles(path=str(tmp_path / "other.jsonl")), root)
        assert len(list(root.glob(f"*/*/{DATA_CACHE_ENTRY}"))) == 2, "tokens and rows of the other file"
        assert not list(root.glob(f"{BUILDING}*"))
        load(data, root)
        assert len(builds) == 3

    def test_build_keeps_entries_that_were_used_lately(self, data, root, tmp_path, builds):
        load(data, root)
        (tmp_path / "other.jsonl").write_text('{"text": "other"}\n')
        load(TextFiles(path=str(tmp_path / "other.jsonl")), root)
        load(data, root)
        assert len(builds) == 2


class TestAccess:
    def test_folder_and_files_are_closed_to_others(self, data, tmp_path):
        os.umask(os.umask(0o022))
        folder = own_cache_folder(tmp_path)
        assert folder == tmp_path / "cache" / str(os.getuid())
        load(data, folder)
        for path in (folder, *folder.rglob("*")):
            assert path.stat().st_mode & 0o027 == 0, path

    def test_folder_that_others_may_write_is_not_used(self, tmp_path):
        own_cache_folder(tmp_path).chmod(0o2777)
        assert own_cache_folder(tmp_path) is None

    def test_link_in_place_of_the_folder_is_not_used(self, tmp_path):
        (tmp_path / "cache").mkdir()
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "cache" / str(os.getuid())).symlink_to(tmp_path / "elsewhere")
        assert own_cache_folder(tmp_path) is None

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another account")
    def test_folder_of_another_account_is_not_used(self, tmp_path):
        os.chown(own_cache_folder(tmp_path), 12345, 12345)
        assert own_cache_folder(tmp_path) is None

    def test_runs_folder_that_cannot_be_written_has_no_cache(self, tmp_path):
        (tmp_path / "cache").write_text("")
        assert own_cache_folder(tmp_path) is None

    def test_name_of_an_entry_is_not_the_digest_of_its_content(self, data, root):
        load(data, root)
        digests = {
            value
            for path in entries(root)
            for _, value in json.loads((path / DATA_CACHE_ENTRY).read_text())["files"].values()
        }
        assert not digests & {path.name for path in entries(root)}


def test_use_of_an_entry_renews_its_time(data, root):
    load(data, root)
    record = tokens_entry(root) / DATA_CACHE_ENTRY
    os.utime(record, (1, 1))
    load(data, root)
    assert time.time() - record.stat().st_mtime < 60
