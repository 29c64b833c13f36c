"""The suite as a whole: checks for the notebooks, the runner, the report and the command line."""
