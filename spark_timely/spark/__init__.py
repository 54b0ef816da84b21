"""What runs where a SparkSession is: session settings, foreachBatch, starting a capture."""

from __future__ import annotations
