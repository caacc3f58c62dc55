"""The command line, problem files, tables and the explorer."""
