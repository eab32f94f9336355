"""Shapes of known models, by their published numbers of parameters, and of a folder."""

import json

import pytest
from tiny import make_tiny_model

from nightschool.errors import InputError
from nightschool.models.shapes import KNOWN, SIZES, Shape, find_shape, read_shape

PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
    "mistral-7b-v0.3": 7_248_023_552,
}


def test_every_shape_has_the_published_number_of_parameters():
    assert {shape.name: shape.num_parameters for shape in KNOWN} == PUBLISHED


def test_parameters_by_hand():
    # a block: q 4x4, k and v 4x2 each, o 4x4, gate, up and down 4x6 each: 16+8+8+16+72 = 120, two norms of 4
    # 2 blocks: 256; the embedding 10x4 = 40; the last norm 4
    sizes = (2, 4, 2, 1, 2, 6, 10)
    assert Shape("a", *sizes).num_parameters == 300
    assert Shape("a", *sizes, tied=False).num_parameters == 340
    assert Shape("a", *sizes, biased=True).num_parameters == 316  # + 2 x (4 + 2 + 2)
    assert Shape("a", *sizes, norms_heads=True).num_parameters == 308  # + 2 x 2 x 2


def test_a_folder_tells_its_shape(tmp_path):
    from safetensors.torch import load_file

    folder = make_tiny_model(tmp_path / "tiny")
    weights = load_file(folder / "model.safetensors")
    assert read_shape(folder).num_parameters == sum(weight.numel() for weight in weights.values())


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("7b", "qwen2.5-7b"),
        ("8B", "llama-3.1-8b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("smollm2-135m", "smollm2-135m"),
    ],
)
def test_names(asked, found):
    assert find_shape(asked).name == found


def test_every_size_is_known():
    assert set(SIZES.values()) <= {shape.name for shape in KNOWN}


def test_what_is_not_known_is_refused(tmp_path):
    with pytest.raises(InputError, match="'70b' is not known"):
        find_shape("70b")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mixtral"}))
    with pytest.raises(InputError, match="type 'mixtral'"):
        find_shape(str(tmp_path))
