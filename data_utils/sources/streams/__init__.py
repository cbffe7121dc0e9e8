"""Records that are read while training goes on: parquet and tar files, here or at a URL."""
