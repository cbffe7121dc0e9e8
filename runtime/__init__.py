"""A launched process: errors, command line, console, files, threads, launch and signals. Knows nothing of images."""
