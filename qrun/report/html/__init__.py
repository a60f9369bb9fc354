"""One self-contained HTML page from the JSON fields of reports."""
