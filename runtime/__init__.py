"""A launched process: errors, command line, console, files, threads, launch and signals. No code here reads images."""
