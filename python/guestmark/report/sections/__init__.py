"""The sections of a report, each made once; `report.full_report` and `report.short_report` make pages of them."""
