"""Registration in programs that generate video; each module imports its host when it is imported."""
