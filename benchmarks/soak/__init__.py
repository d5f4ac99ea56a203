"""Long jobs and messages under random faults, judged by a history that is not ultramon's own.

`history` and `checker` know nothing of ultramon: the first stores facts, the second judges them.
`worker`, `orchestrator` and `messengers` are the programs under test, `stores` what they store in,
`faults` what befalls them. `__main__` is the command line.
"""
