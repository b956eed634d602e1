"""`python -m memsvc` is `memsvc`."""

from .cli import main

main(prog_name="memsvc")
