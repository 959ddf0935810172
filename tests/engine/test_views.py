"""What has not changed is shown as the same object; what has is always shown as it is."""

from __future__ import annotations

import pytest
from hypothesis import given

import policies.relief
from policies.types import Arrival
from policies.view import ModelView, RangeView
from policies.views import Views
from tests.engine.strategies import cases, mirages
from tests.engine.worlds import Setup, serve


class Compared(Views):
    """Looks at everything anew beside what it has kept."""

    def models(self, active: frozenset[int]) -> tuple[ModelView, ...]:
        shown = super().models(active)
        assert shown == self._anew().models(active)
        return shown

    def ranges(self) -> tuple[RangeView, ...]:
        shown = super().ranges()
        assert shown == self._anew().ranges()
        return shown

    def _anew(self) -> Views:
        return Views(self._lanes, self._ledger, self._hardware, self._rates, shows_requests=self._shows_requests)


@given(cases(mirages))
def test_views_that_keep_what_has_not_changed_show_what_new_ones_show(case: tuple[Setup, list[Arrival]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policies.relief, "Views", Compared)
        serve(*case)
