"""A folder of sentence-transformers states how its vectors are made; a training in another way is refused."""

import shutil

import pytest

from tests.support import hf
from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS, AllowedRoots
from trainyard.contract.wire.exported import TextVectors
from worker.core.errors import RefusedError
from worker.export.embedding import save_modules
from worker.tasks.sentence_modules import check_sentence_modules, pooling_modes

NAMES = {"mean": "mean", "cls": "first", "lasttoken": "last"}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    import sentence_transformers  # noqa: F401

    return hf.save_llama(tmp_path_factory.mktemp("base") / "llama")


def written(base, folder, modes, *, dense=False):
    """Save a model of sentence-transformers, and return its folder."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    modules = [Transformer(str(base)), Pooling(64, modes), *([Dense(64, 8)] if dense else []), Normalize()]
    SentenceTransformer(modules=modules).save(str(folder))
    return folder


@pytest.mark.parametrize("mode", NAMES)
def test_stated_pooling_is_required(tmp_path, base, mode):
    folder = written(base, tmp_path / "model", mode)
    for own in NAMES.values():
        if own == NAMES[mode]:
            check_sentence_modules("model.path", folder, own, UNRESTRICTED_ROOTS)
            continue
        with pytest.raises(RefusedError, match=rf"^embedding\.pooling: is `{own}`, .* has '{mode}'") as refused:
            check_sentence_modules("model.path", folder, own, UNRESTRICTED_ROOTS)
        assert refused.value.hint.startswith(f"Set embedding.pooling to {NAMES[mode]}, or remove modules.json")


@pytest.mark.parametrize("modes", ["max", "weightedmean", ("cls", "mean")])
def test_other_pooling_is_refused(tmp_path, base, modes):
    with pytest.raises(RefusedError, match=r"^embedding\.pooling: is `mean`") as refused:
        check_sentence_modules("model.path", written(base, tmp_path / "model", modes), "mean", UNRESTRICTED_ROOTS)
    assert refused.value.hint.startswith("Remove modules.json from a copy")


def test_module_that_is_not_trained_is_refused(tmp_path, base):
    folder = written(base, tmp_path / "model", "mean", dense=True)
    with pytest.raises(RefusedError, match="with the module Dense"):
        check_sentence_modules("model.path", folder, "mean", UNRESTRICTED_ROOTS)


@pytest.mark.parametrize("pooling", NAMES.values())
def test_own_exports_state_their_pooling(tmp_path, pooling):
    save_modules(tmp_path, TextVectors(pooling=pooling, max_length=8, width=4))
    check_sentence_modules("model.path", tmp_path, pooling, UNRESTRICTED_ROOTS)
    with pytest.raises(RefusedError):
        check_sentence_modules("model.path", tmp_path, "last" if pooling != "last" else "mean", UNRESTRICTED_ROOTS)


def test_model_of_another_kind_states_nothing(base):
    check_sentence_modules("model.path", base, "last", UNRESTRICTED_ROOTS)


@pytest.mark.parametrize(
    ("config", "modes"),
    [
        ({}, ["mean"]),
        ({"word_embedding_dimension": 4, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, ["cls"]),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, ["mean_sqrt_len_tokens"]),
        ({"pooling_mode_lasttoken": True}, ["lasttoken"]),
        ({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, ["cls", "max"]),
        ({"pooling_mode": ["cls", "max"]}, ["cls", "max"]),
    ],
)
def test_modes_of_earlier_versions(config, modes):
    assert pooling_modes(config) == modes


@pytest.mark.parametrize("text", ["[", "3", "[3]", '[{"type": "a.Pooling", "path": "../x"}]'])
def test_damaged_list_of_modules_is_refused(tmp_path, text):
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(RefusedError, match=r"^model\.path: "):
        check_sentence_modules("model.path", tmp_path, "mean", UNRESTRICTED_ROOTS)


def test_configuration_outside_of_the_roots_is_refused(tmp_path, base):
    folder = written(base, tmp_path / "root" / "model", "cls")
    shutil.move(folder / "1_Pooling", tmp_path / "moved")
    (folder / "1_Pooling").symlink_to(tmp_path / "moved")
    with pytest.raises(RefusedError, match="leads out"):
        check_sentence_modules("model.path", folder, "first", AllowedRoots(allowed=(str(tmp_path / "root"),)))
