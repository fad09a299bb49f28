"""SupportPilot as the command line finds it: `supportpilot.app:durable`.

Importing this opens the database that the settings name; to build another one, `build.make`.
"""

from __future__ import annotations

from supportpilot.build import make

durable = make()
