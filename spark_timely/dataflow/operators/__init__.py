"""Operators of dataflows: one dataclass for each, whose fields say what it is in the user's words.

A method of `Stream` (`dataflow.stream`), or a plan (`spark_timely.compute.plan`), makes an operator. `Operator.bind`
checks it against its inputs and makes views of it: one, or a chain of several. What a view computes, its text in
fingerprints, and what people are shown of it come from the operator of the view. What operators over all history
compute is in `dataflow.history`.
"""

from __future__ import annotations
