from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import write_tiny_tokenizer
from traffic import fix_splits

from nightschool.rendering.renderer import Renderer
from nightschool.store.database import Store


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(folder)
    return Renderer.from_folder(folder)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.sqlite") as opened:
        fix_splits(opened)
        yield opened
