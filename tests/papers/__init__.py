"""The claims of the documents behind the library."""
