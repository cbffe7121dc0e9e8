"""Where images and masks come from: folders, `datasets`, parquet and tar files, local or remote."""
