"""What can be wrong with a run, or with files that should belong together: one module per topic, all give findings.

Below the commands: `check` prints all of these, `train` refuses to start on the errors among them. Nothing is changed.
"""
