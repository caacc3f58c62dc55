"""A checker of names and English: `python -m tests.style [PATH ...]` lists what to rewrite.

`rules.py` contains the lists, `checker.py` applies them to one file, and `gate.py` compares a tree
with the stored counts. CONTRIBUTING.md, section "Style", describes how to use it.
"""
