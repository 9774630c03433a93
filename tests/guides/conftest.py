"""Selects kerascl for the Keras of these tests, as for those of the backend."""

from tests.backend.conftest import clean_session  # noqa: F401  (a fixture)
