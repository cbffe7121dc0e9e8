"""A launched process: errors, command line, console, files, threads, launch and signals. No code here reads images."""

VERSION = "1.0.0rc1"
