"""What the demo can end with, apart from success.

::

    CliError
    └── DemoFailed    a step failed, or was stuck: names it; exit code 1
"""

from __future__ import annotations

from pacerelle_cli.errors import CliError


class DemoFailed(CliError):
    code = "demo_failed"
