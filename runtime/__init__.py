"""A launched process: errors, command line, console, files, threads, launch and signals. No code here reads images."""

VERSION = "0.1.0"
