"""`python -m cbbench`."""

from cbbench.cli import main

main()
