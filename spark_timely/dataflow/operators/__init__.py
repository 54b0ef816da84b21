"""Operators of dataflows: one dataclass for each, whose fields say what it is in the user's words.

A method of `Stream`, or a plan, makes an operator. `Operator.bind` checks it against its inputs and makes views of it:
one, or a chain of several. What a view computes, what it is called in fingerprints, and what people are shown of it
says the operator of the view.
"""

from __future__ import annotations
