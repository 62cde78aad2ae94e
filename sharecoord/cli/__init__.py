"""The command line: Click commands, imported when they are called. See `sharecoord.cli.main`."""
