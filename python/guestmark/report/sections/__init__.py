"""The sections of a report; `report.full_report` and `report.short_report` combine them into pages."""
