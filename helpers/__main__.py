import sys

from helpers.suite.cli import main

sys.exit(main())
