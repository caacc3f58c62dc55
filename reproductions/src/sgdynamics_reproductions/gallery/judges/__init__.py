"""One file a document: what each of its figures claims, and whether the data show it."""
