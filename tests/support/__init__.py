"""What tests share: data, networks, runs, and the scripts started in several ways."""
