"""The board's cells and steps from handmade moments, and the stage of the live board without a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from evidence_maker import Maker  # adapt

