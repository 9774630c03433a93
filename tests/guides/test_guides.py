"""The programs of Keras' guides, on synthetic data, each checking what it computes."""

import importlib.util
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
GUIDES = sorted(
    path.stem for path in FOLDER.glob("*.py") if path.stem not in ("conftest", "test_guides")
)


@pytest.mark.parametrize("name", GUIDES)
def test_guide(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location(f"guide_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()
