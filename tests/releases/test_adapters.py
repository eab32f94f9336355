import dataclasses
import json
import os
import shutil
import time

import numpy as np
import pytest
import sqlalchemy as sa

from nightschool.errors import AdapterError, MissingError
from nightschool.releases import adapters
from nightschool.releases.adapters import adapter_digest, check_adapter, find_manifest, install_adapter
from nightschool.store import schema


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state"


def test_installed_under_its_digest_with_its_manifest(store, state, make_folder, manifest):
    digest = install_adapter(store, state, make_folder(), manifest)
    folder = state / "adapters" / digest
    assert sorted(path.name for path in folder.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "manifest.json",
    ]
    assert adapter_digest(folder) == digest
    assert check_adapter(folder, digest) == manifest
    with store.read() as conn:
        assert find_manifest(conn, store.tenant, digest) == manifest
        assert find_manifest(conn, "another tenant", digest) is None
    assert list((state / "adapters").glob(".tmp-*")) == []


def test_the_same_adapter_from_another_path_has_the_same_name(store, state, make_folder, manifest):
    first = install_adapter(store, state, make_folder("a", base="/home/a/model"), manifest)
    second = install_adapter(store, state, make_folder("b", base="C:\\models\\m"), manifest)
    assert first == second
    with store.read() as conn:
        assert len(conn.execute(sa.select(schema.adapters)).all()) == 1


def test_spacing_and_key_order_of_the_configuration_do_not_count(make_folder, manifest):
    one, two = make_folder("a"), make_folder("b")
    config = json.loads((two / "adapter_config.json").read_text())
    (two / "adapter_config.json").write_text(json.dumps(dict(reversed(config.items())), indent=7))
    for folder in (one, two):
        (folder / "manifest.json").write_text(json.dumps(manifest.as_json()))
    assert adapter_digest(one) == adapter_digest(two)


@pytest.mark.parametrize("change", ["weights", "config", "manifest"])
def test_each_part_counts(store, state, make_folder, manifest, change):
    before = install_adapter(store, state, make_folder("a"), manifest)
    folder = make_folder("b", values=(1.0, 2.5) if change == "weights" else (1.0, 2.0))
    if change == "config":
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps({**config, "r": 2}))
    if change == "manifest":
        manifest = dataclasses.replace(manifest, dataset_digest="f" * 64)
    assert install_adapter(store, state, folder, manifest) != before


def test_changed_bytes_refuse_to_serve_and_keep_their_name(store, state, make_folder, manifest):
    source = make_folder()
    digest = install_adapter(store, state, source, manifest)
    weights = state / "adapters" / digest / "adapter_model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(bytes(raw))
    with pytest.raises(AdapterError, match="refuses to serve") as refused:
        check_adapter(weights.parent, digest)
    assert refused.value.next_step == "nightschool rollback"
    with pytest.raises(AdapterError):  # neither does installing again put other bytes under the name
        install_adapter(store, state, source, manifest)
    assert weights.read_bytes() == bytes(raw)


def test_a_stray_file_in_an_installed_folder_refuses_to_serve(store, state, make_folder, manifest):
    digest = install_adapter(store, state, make_folder(), manifest)
    folder = state / "adapters" / digest
    (folder / "added_tokens.json").write_text("{}")
    with pytest.raises(AdapterError):
        check_adapter(folder, digest)


@pytest.mark.parametrize("part", ["base", "tokenizer", "template"])
def test_made_for_something_else_refuses_to_serve(store, state, make_folder, manifest, part):
    digest = install_adapter(store, state, make_folder(), manifest)
    folder = state / "adapters" / digest
    running = {"base_digest": "b" * 64, "tokenizer_digest": "c" * 64, "template_digest": "d" * 64}
    assert check_adapter(folder, digest, **running) == manifest
    with pytest.raises(AdapterError, match=f"trained on {part}"):
        check_adapter(folder, digest, **{**running, f"{part}_digest": "0" * 64})


def test_an_absent_adapter_is_missing(state):
    with pytest.raises(MissingError):
        check_adapter(state / "adapters" / ("a" * 64), "a" * 64)


@pytest.mark.parametrize("name", ["adapter_model.bin", "training_args.pkl", "run.py", "README.md"])
def test_other_kinds_of_files_are_refused(store, state, make_folder, manifest, name):
    folder = make_folder()
    (folder / name).write_bytes(b"x")
    with pytest.raises(AdapterError, match=name):
        install_adapter(store, state, folder, manifest)
    assert list((state / "adapters").iterdir()) == []


def test_links_and_folders_are_refused(store, state, tmp_path, make_folder, manifest):
    linked, nested = make_folder("linked"), make_folder("nested")
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (linked / "extra.json").symlink_to(secret)
    (nested / "inner.json").mkdir()
    for folder in (linked, nested):
        with pytest.raises(AdapterError, match="not a plain"):
            install_adapter(store, state, folder, manifest)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_incomplete_folder_is_refused(store, state, make_folder, manifest, name):
    folder = make_folder()
    (folder / name).unlink()
    with pytest.raises(AdapterError, match=f"{name} is absent"):
        install_adapter(store, state, folder, manifest)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(store, state, make_folder, manifest, bad):
    with pytest.raises(AdapterError, match="not finite"):
        install_adapter(store, state, make_folder(values=(1.0, bad)), manifest)


def test_a_manifest_about_other_layers_is_refused(store, state, make_folder, manifest):
    with pytest.raises(AdapterError, match="its manifest says"):
        install_adapter(store, state, make_folder(), dataclasses.replace(manifest, targets=("q_proj",)))


def test_a_manifest_without_a_real_base_digest_is_refused(store, state, make_folder, manifest):
    with pytest.raises(AdapterError, match="base_digest"):
        install_adapter(store, state, make_folder(), dataclasses.replace(manifest, base_digest="smollm2"))


def test_a_half_written_copy_never_has_a_name(store, state, make_folder, manifest, monkeypatch):
    def pull_the_plug(_path):
        raise OSError("power cut")

    monkeypatch.setattr(adapters, "_sync", pull_the_plug)
    with pytest.raises(OSError, match="power cut"):
        install_adapter(store, state, make_folder(), manifest)
    assert list((state / "adapters").iterdir()) == []
    with store.read() as conn:
        assert conn.execute(sa.select(schema.adapters)).all() == []


def test_leftovers_of_a_killed_installation_are_swept_and_young_ones_left(store, state, make_folder, manifest):
    old, young = state / "adapters" / ".tmp-old", state / "adapters" / ".tmp-young"
    old.mkdir(parents=True)
    young.mkdir()
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    install_adapter(store, state, make_folder(), manifest)
    assert not old.exists()
    assert young.exists()


def test_installed_files_suffice_when_only_the_row_was_lost(store, state, make_folder, manifest):
    source = make_folder()
    digest = install_adapter(store, state, source, manifest)
    store.write(lambda conn: conn.execute(sa.delete(schema.adapters)))
    assert install_adapter(store, state, source, manifest) == digest
    with store.read() as conn:
        assert find_manifest(conn, store.tenant, digest) == manifest


def test_a_folder_that_vanished_is_installed_again(store, state, make_folder, manifest):
    source = make_folder()
    digest = install_adapter(store, state, source, manifest)
    shutil.rmtree(state / "adapters" / digest)
    assert install_adapter(store, state, source, manifest) == digest
    check_adapter(state / "adapters" / digest, digest)
