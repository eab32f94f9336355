"""The databases that a store may lie in. What runs on a server runs where slow tests do."""

import pytest

ON_BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)]
