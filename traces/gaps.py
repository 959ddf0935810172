"""The gaps between tokens as an exact histogram: many gaps, fewer different ones."""

# pyarrow comes without type information.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import numpy as np

from traces.tables import ArrowTable


def histogram(rows: ArrowTable) -> ArrowTable:
    """Add up the counts of equal (model, cause, gap_ns), and sort by these.

    By numpy: pyarrow's own grouping takes more memory, at the end of a run when it is scarcest.
    """
    import pyarrow as pa

    if not len(rows):
        return rows
    causes = rows["cause"].combine_chunks().dictionary_encode()
    by_name = np.argsort(np.argsort(causes.dictionary.to_pylist()))
    cause = by_name[causes.indices.to_numpy()]
    model, gap_ns, n = (rows[name].to_numpy() for name in ("model", "gap_ns", "n"))
    order = np.lexsort((gap_ns, cause, model))
    is_first = np.zeros(len(rows), np.bool_)
    is_first[0] = True
    for key in (model, cause, gap_ns):
        is_first[1:] |= np.diff(key[order]) != 0
    first = np.flatnonzero(is_first)
    counts = np.add.reduceat(n[order], first)
    kept = rows.take(pa.array(order[first]))
    return kept.set_column(rows.schema.get_field_index("n"), rows.schema.field("n"), pa.array(counts)).combine_chunks()
