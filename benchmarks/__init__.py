"""Benchmarks: this project beside what users have today, in one run, with every answer checked."""
