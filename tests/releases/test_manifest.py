import dataclasses
import hashlib
import json

import pytest
from tiny import write_tiny_tokenizer

from nightschool.errors import AdapterError, MissingError
from nightschool.releases.manifest import Manifest, read_manifest, template_digest, tokenizer_digest
from nightschool.rendering.renderer import Renderer


def test_reads_what_it_wrote(tmp_path, manifest):
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(manifest.as_json()))
    assert read_manifest(path) == manifest


@pytest.mark.parametrize("change", [{"extra": 1}, {"targets": "q_proj"}])
def test_other_keys_are_refused(tmp_path, manifest, change):
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({**manifest.as_json(), **change}))
    with pytest.raises(AdapterError, match="must hold exactly"):
        read_manifest(path)


def test_the_order_of_target_layers_does_not_count(manifest: Manifest):
    turned = dataclasses.replace(manifest, targets=tuple(reversed(manifest.targets)))
    assert turned.as_json() == manifest.as_json()


def test_tokenizer_digest_is_of_the_file(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    assert tokenizer_digest(tmp_path) == hashlib.sha256(b"{}").hexdigest()
    with pytest.raises(MissingError):
        tokenizer_digest(tmp_path / "nowhere")


class ShoutingRenderer(Renderer):
    """Another chat format on the same tokenizer."""

    def prompt_ids(self, messages, tools=()):
        return [self.start_id, *super().prompt_ids(messages, tools)]


def test_template_digest_follows_the_format(tmp_path):
    write_tiny_tokenizer(tmp_path)
    same, again = Renderer.from_folder(tmp_path), Renderer.from_folder(tmp_path)
    other = ShoutingRenderer.from_folder(tmp_path)
    assert template_digest(same) == template_digest(again)
    assert template_digest(other) != template_digest(same)
