"""The matrix: every family × head × direction × kind of file × variant of config.json, judged by transformers.

`table.py` is the data, `judge.py` compares one model with its class in transformers, `cases.py` enumerates and runs
the cases, and `python -m matrix` runs all of them. `test_matrix.py` runs a part.
"""
