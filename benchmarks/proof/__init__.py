"""Proof that runs by itself: soaks, fuzzers, power cuts, earlier stores, the suite of all hosts.

`found` is what each program of a row writes, `rows` says which programs there are and what each
must have done at least, `judgement` runs and judges them, `page` writes PROOF.md and proof.json.
`suites` and `power_cuts` are programs of rows. `__main__` is the command line.
"""
