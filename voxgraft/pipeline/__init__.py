"""What the command `go` decides with: for every stage of a run, whether it has to run, and why."""
