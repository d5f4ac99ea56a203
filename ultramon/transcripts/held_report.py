"""The last report of a transcript, held until its corrections are in."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.hosts.records import Report


class HeldReport:
    """A report whose corrections may still come; they follow it line by line.

    Attributes:
        report: The one that is held, or None.
    """

    def __init__(self, report: Report | None = None) -> None:
        self.report = report

    def take(self, report: Report) -> Report | None:
        """Hold a report, or a correction of the held one; return a report that is final by it."""
        if not report.update:
            final, self.report = self.report, report
            return final
        if self.report is not None:  # else text came between, and a correction would take its place
            self.report = report
        return None

    def release(self) -> Report | None:
        """Return the held report, which is final now."""
        final, self.report = self.report, None
        return final
